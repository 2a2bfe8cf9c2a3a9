"""What canaries are made from (reference models, optimised canaries), and the canaries."""


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
    resources:
        **on_device(mem_mb=3000, runtime=60),
    params:
        code=code_for_audit("train_reference"),
        files=files_in(),
        options=AUDITS.options("reference", device=EXPERIMENT.settings.device),
    message:
        "Training reference model {wildcards.reference}"
    shell:
        COMMAND


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
    resources:
        **on_device(mem_mb=16000, runtime=1440),
    params:
        code=code_for_audit(
            "optimise_canaries", lambda audit: [audit.adversary.optimise]
        ),
        files=files_in(),
        options=AUDITS.options("optimised", device=EXPERIMENT.settings.device),
    message:
        "Optimising canaries {wildcards.optimised}"
    shell:
        COMMAND


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
    resources:
        **on_device(mem_mb=3000, runtime=60),
    params:
        code=code_for_audit(
            "craft_canaries",
            lambda audit: [audit.adversary.function, *audit.own_functions],
        ),
        files=files_in(),
        options=AUDITS.options("canaries", device=EXPERIMENT.settings.device),
    message:
        "Crafting the canaries of {wildcards.runs}"
    shell:
        COMMAND
