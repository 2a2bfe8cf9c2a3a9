"""The runs: shards of models trained in lockstep, or drawn from a process."""

from dpcanary.adversaries.drawing_stage import DrawingStage
from dpcanary.training.stage import TrainingStage


rule train_shard:
    input:
        program=program("train_shard"),
        data=AUDITS.data,
        canaries=f"{RESULTS}/canaries/{{audit}}.npz",
        noise=f"{RESULTS}/noise/{{audit}}.json",
    output:
        f"{RESULTS}/shards/{{audit}}/{{shard}}.npz",
    log:
        f"{LOGS}/train_shard/{{audit}}/{{shard}}.log",
    wildcard_constraints:
        audit=any_of(AUDITS.trained),
    conda:
        "../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=with_known_signature(lambda wildcards, attempt: 4000 * attempt),
        runtime=with_known_signature(lambda wildcards, attempt: 120 * attempt),
        gpu=gpus_of(EXPERIMENT.settings.device),
        # A resource, since no result depends on it; 0 for as many runs as fit.
        runs_at_once=AUDITS.setting("runs_at_once"),
    params:
        code=code("train_shard"),
        settings=AUDITS.stage_as_json(TrainingStage),
        first=with_known_signature(lambda wildcards: AUDITS.runs(wildcards).start),
        num=with_known_signature(lambda wildcards: len(AUDITS.runs(wildcards))),
        device=EXPERIMENT.settings.device,
    message:
        "Training {params.num} models of {wildcards.audit}, shard {wildcards.shard}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --data {input.data}"
        " --canaries {input.canaries} --noise {input.noise} --first-run {params.first}"
        " --num-runs {params.num} --device {params.device} --threads {threads}"
        " --runs-at-once {resources.runs_at_once}"
        " --output {output} 2> {log}"


rule draw_shard:
    input:
        program=program("draw_shard"),
        noise=f"{RESULTS}/noise/{{audit}}.json",
    output:
        f"{RESULTS}/shards/{{audit}}/{{shard}}.npz",
    log:
        f"{LOGS}/draw_shard/{{audit}}/{{shard}}.log",
    wildcard_constraints:
        audit=any_of(AUDITS.drawn),
    conda:
        "../envs/estimation.yaml"
    threads: 1
    resources:
        mem_mb=with_known_signature(lambda wildcards, attempt: 1000 * attempt),
        runtime=with_known_signature(lambda wildcards, attempt: 30 * attempt),
    params:
        code=by_audit(lambda audit: code("draw_shard", AUDITS.function(audit))),
        settings=AUDITS.stage_as_json(DrawingStage),
        first=with_known_signature(lambda wildcards: AUDITS.runs(wildcards).start),
        num=with_known_signature(lambda wildcards: len(AUDITS.runs(wildcards))),
    message:
        "Drawing {params.num} runs of {wildcards.audit}, shard {wildcards.shard}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --noise {input.noise}"
        " --first-run {params.first} --num-runs {params.num} --output {output} 2> {log}"
