"""The runs: shards of models trained in lockstep, or drawn directly for the worst case."""


rule train_shard:
    input:
        program=program("train_shard"),
        data=data_of,
        canary=f"{RESULTS}/canaries/{{audit}}.npz",
        noise=f"{RESULTS}/noise/{{audit}}.json",
    output:
        f"{RESULTS}/shards/{{audit}}/{{shard}}.npz",
    log:
        f"{LOGS}/train_shard/{{audit}}/{{shard}}.log",
    wildcard_constraints:
        audit=any_of(TRAINED),
    conda:
        "../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=quick(lambda wildcards, attempt: 4000 * attempt),
        runtime=quick(lambda wildcards, attempt: 120 * attempt),
        gpu=gpus_of(EXPERIMENT.settings.device),
        runs_at_once=runs_at_once,
    params:
        library=library_digest("train_shard"),
        settings=told(stages.TrainingStage),
        first=quick(lambda wildcards: runs_of(wildcards).start),
        num=quick(lambda wildcards: len(runs_of(wildcards))),
        device=EXPERIMENT.settings.device,
    message:
        "Training {params.num} models of {wildcards.audit}, shard {wildcards.shard}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --data {input.data}"
        " --canary {input.canary} --noise {input.noise} --first-run {params.first}"
        " --num-runs {params.num} --device {params.device} --threads {threads}"
        " --runs-at-once {resources.runs_at_once}"
        " --output {output} 2> {log}"


rule draw_worst_case_shard:
    input:
        program=program("draw_worst_case_shard"),
        noise=f"{RESULTS}/noise/{{audit}}.json",
    output:
        f"{RESULTS}/shards/{{audit}}/{{shard}}.npz",
    log:
        f"{LOGS}/draw_worst_case_shard/{{audit}}/{{shard}}.log",
    wildcard_constraints:
        audit=any_of(DRAWN),
    conda:
        "../envs/estimation.yaml"
    threads: 1
    resources:
        mem_mb=quick(lambda wildcards, attempt: 1000 * attempt),
        runtime=quick(lambda wildcards, attempt: 30 * attempt),
    params:
        library=library_digest("draw_worst_case_shard"),
        settings=told(stages.TrainingStage),
        first=quick(lambda wildcards: runs_of(wildcards).start),
        num=quick(lambda wildcards: len(runs_of(wildcards))),
    message:
        "Drawing {params.num} runs of {wildcards.audit}, shard {wildcards.shard}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --noise {input.noise}"
        " --first-run {params.first} --num-runs {params.num} --output {output} 2> {log}"
