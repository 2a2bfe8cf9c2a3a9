"""What canaries are made from (reference models, optimised canaries), and the canaries."""

from dpcanary.adversaries.settings import CraftingStage, MetagradientStage
from dpcanary.training.settings import ReferenceStage


rule train_reference:
    input:
        program=program("train_reference"),
        data=AUDITS.input("reference", "data"),
        pretrained=AUDITS.input("reference", "pretrained"),
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
        code=code_of_training("train_reference"),
        settings=AUDITS.stage_as_json(ReferenceStage),
        pretrained=lambda wildcards, input: option("pretrained", *input.pretrained),
        device=EXPERIMENT.settings.device,
        job=AUDITS.job("reference"),
    message:
        "Training reference model {wildcards.reference}"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --data {input.data}"
        " {params.pretrained} --device {params.device} --output {output} 2> {log}"


rule optimise_canaries:
    input:
        program=program("optimise_canaries"),
        data=AUDITS.input("optimised", "data"),
    output:
        f"{RESULTS}/optimised/{{optimised}}.npz",
    log:
        f"{LOGS}/optimise_canaries/{{optimised}}.log",
    conda:
        "../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 16000 * attempt,
        runtime=lambda wildcards, attempt: 1440 * attempt,
        gpu=gpus_of(EXPERIMENT.settings.device),
    params:
        code=code_of_training("optimise_canaries"),
        settings=AUDITS.stage_as_json(MetagradientStage),
        device=EXPERIMENT.settings.device,
        job=AUDITS.job("optimised"),
    message:
        "Optimising canaries {wildcards.optimised}"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --data {input.data}"
        " --device {params.device} --output {output} 2> {log}"


rule craft_canaries:
    input:
        program=program("craft_canaries"),
        data=AUDITS.input("canaries", "data"),
        reference=AUDITS.input("canaries", "reference"),
        noise=AUDITS.input("canaries", "noise"),
        optimised=AUDITS.input("canaries", "optimised"),
        pretrained=AUDITS.input("canaries", "pretrained"),
    output:
        f"{RESULTS}/canaries/{{runs}}.npz",
    log:
        f"{LOGS}/craft_canaries/{{runs}}.log",
    wildcard_constraints:
        runs=any_of(AUDITS.trained),
    conda:
        "../envs/training.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 3000 * attempt,
        runtime=lambda wildcards, attempt: 60 * attempt,
        gpu=gpus_of(EXPERIMENT.settings.device),
    params:
        code=AUDITS.by_audit(
            lambda audit: code("craft_canaries", *AUDITS.crafting_functions(audit))
        ),
        settings=AUDITS.stage_as_json(CraftingStage),
        reference=lambda wildcards, input: option("reference", *input.reference),
        noise=lambda wildcards, input: option("noise", *input.noise),
        optimised=lambda wildcards, input: option("optimised", *input.optimised),
        pretrained=lambda wildcards, input: option("pretrained", *input.pretrained),
        device=EXPERIMENT.settings.device,
        job=AUDITS.job("canaries"),
    message:
        "Crafting the canaries of {wildcards.runs}"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --data {input.data}"
        " {params.reference} {params.noise} {params.optimised} {params.pretrained}"
        " --device {params.device} --output {output} 2> {log}"
