"""Pretrained models, and the runs: shards of models trained in lockstep, or drawn from a process."""

from dpcanary.adversaries.settings import DrawingStage
from dpcanary.training.settings import PretrainingStage
from dpcanary.training.settings import TrainingStage


rule pretrain:
    input:
        program=program("pretrain"),
        data=AUDITS.input("pretrained", "data"),
        other=AUDITS.input("pretrained", "other"),
    output:
        f"{RESULTS}/pretrained/{{pretrained}}.npz",
    log:
        f"{LOGS}/pretrain/{{pretrained}}.log",
    conda:
        "../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 8000 * attempt,
        runtime=lambda wildcards, attempt: 720 * attempt,
        gpu=gpus_of(EXPERIMENT.settings.device),
    params:
        code=code_of_training("pretrain"),
        settings=AUDITS.stage_as_json(PretrainingStage),
        other=lambda wildcards, input: option("other", *input.other),
        device=EXPERIMENT.settings.device,
        job=AUDITS.job("pretrained"),
    message:
        "Pretraining model {wildcards.pretrained}"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --data {input.data}"
        " {params.other} --device {params.device} --output {output} 2> {log}"


rule train_shard:
    input:
        program=program("train_shard"),
        data=AUDITS.input("shards", "data"),
        canaries=f"{RESULTS}/canaries/{{runs}}.npz",
        noise=f"{RESULTS}/noise/{{runs}}.json",
        pretrained=AUDITS.input("shards", "pretrained"),
    output:
        f"{RESULTS}/shards/{{runs}}/{{shard}}.npz",
    log:
        f"{LOGS}/train_shard/{{runs}}/{{shard}}.log",
    wildcard_constraints:
        runs=any_of(AUDITS.trained),
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
        code=code_of_training("train_shard"),
        settings=AUDITS.stage_as_json(TrainingStage),
        first=with_known_signature(
            lambda wildcards: AUDITS.run_indices(wildcards).start
        ),
        num=with_known_signature(lambda wildcards: len(AUDITS.run_indices(wildcards))),
        pretrained=lambda wildcards, input: option("pretrained", *input.pretrained),
        device=EXPERIMENT.settings.device,
        job=AUDITS.job("shards"),
    message:
        "Training {params.num} models of {wildcards.runs}, shard {wildcards.shard}"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --data {input.data}"
        " --canaries {input.canaries} --noise {input.noise} {params.pretrained} --first-run {params.first}"
        " --num-runs {params.num} --device {params.device} --threads {threads}"
        " --runs-at-once {resources.runs_at_once}"
        " --output {output} 2> {log}"


rule draw_shard:
    input:
        program=program("draw_shard"),
        noise=f"{RESULTS}/noise/{{runs}}.json",
    output:
        f"{RESULTS}/shards/{{runs}}/{{shard}}.npz",
    log:
        f"{LOGS}/draw_shard/{{runs}}/{{shard}}.log",
    wildcard_constraints:
        runs=any_of(AUDITS.drawn),
    conda:
        "../envs/estimation.yaml"
    threads: 1
    resources:
        mem_mb=with_known_signature(lambda wildcards, attempt: 1000 * attempt),
        runtime=with_known_signature(lambda wildcards, attempt: 30 * attempt),
    params:
        code=AUDITS.by_audit(lambda audit: code("draw_shard", AUDITS.function(audit))),
        settings=AUDITS.stage_as_json(DrawingStage),
        first=with_known_signature(
            lambda wildcards: AUDITS.run_indices(wildcards).start
        ),
        num=with_known_signature(lambda wildcards: len(AUDITS.run_indices(wildcards))),
        job=AUDITS.job("shards"),
    message:
        "Drawing {params.num} runs of {wildcards.runs}, shard {wildcards.shard}"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --noise {input.noise}"
        " --first-run {params.first} --num-runs {params.num} --output {output} 2> {log}"
