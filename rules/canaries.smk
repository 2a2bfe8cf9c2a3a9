"""The reference model with its target record, and the canaries that are made through it."""


rule train_reference:
    input:
        program=program("train_reference"),
        library=library("train_reference"),
        data=lambda wildcards: (
            f"{RESULTS}/data/{EXPERIMENT.audits[AUDIT_OF_REFERENCE[wildcards.reference]].dataset}.npz"
        ),
    output:
        f"{RESULTS}/reference/{{reference}}.npz",
    log:
        f"{LOGS}/train_reference/{{reference}}.log",
    conda:
        "../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 3000 * attempt,
        runtime=lambda wildcards, attempt: 60 * attempt,
        gpu=gpus_of(EXPERIMENT.settings.device),
    params:
        settings=lambda wildcards: EXPERIMENT.stage(
            stages.ReferenceStage, audit=AUDIT_OF_REFERENCE[wildcards.reference]
        ).to_json(),
        device=EXPERIMENT.settings.device,
    message:
        "Training reference model {wildcards.reference}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --data {input.data}"
        " --device {params.device} --output {output} 2> {log}"


rule craft_canary:
    input:
        program=program("craft_canary"),
        library=library("craft_canary"),
        data=data_of,
        reference=lambda wildcards: f"{RESULTS}/reference/{reference_of(wildcards.audit)}.npz",
    output:
        f"{RESULTS}/canaries/{{audit}}.npz",
    log:
        f"{LOGS}/craft_canary/{{audit}}.log",
    wildcard_constraints:
        audit=any_of(TRAINED),
    conda:
        "../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 3000 * attempt,
        runtime=lambda wildcards, attempt: 60 * attempt,
        gpu=gpus_of(EXPERIMENT.settings.device),
    params:
        settings=told(stages.CanaryStage),
        device=EXPERIMENT.settings.device,
    message:
        "Crafting the canary of {wildcards.audit}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --data {input.data}"
        " --reference {input.reference} --device {params.device} --output {output} 2> {log}"
