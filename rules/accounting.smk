"""The noise of every audit, and the epsilon that accountants give it."""


# Seconds each: not worth a place in a cluster's queue.
localrules:
    calibrate_noise,
    account,


rule calibrate_noise:
    input:
        program=program("calibrate_noise"),
        library=library("calibrate_noise"),
    output:
        f"{RESULTS}/noise/{{audit}}.json",
    log:
        f"{LOGS}/calibrate_noise/{{audit}}.log",
    conda:
        "../envs/accounting.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        settings=told(stages.NoiseStage),
    message:
        "Fixing the noise of {wildcards.audit}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --output {output} 2> {log}"


rule account:
    input:
        program=program("account"),
        library=library("account"),
        noise=f"{RESULTS}/noise/{{audit}}.json",
    output:
        table=f"{RESULTS}/accounting/{{audit}}.tsv",
        profile=f"{RESULTS}/profiles/{{audit}}.tsv",
    log:
        f"{LOGS}/account/{{audit}}.log",
    conda:
        "../envs/accounting.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        settings=told(stages.AccountingStage),
    message:
        "Accounting {wildcards.audit}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --noise {input.noise}"
        " --output {output.table} --profile {output.profile} 2> {log}"
