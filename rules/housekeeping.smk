"""What looks at an experiment without computing anything."""


rule list_audits:
    input:
        program=program("list_audits"),
        library=library("list_audits"),
        experiment=RESOLVED_CONFIG,
    log:
        f"{LOGS}/list_audits.log",
    conda:
        "../envs/estimation.yaml"
    threads: 1
    resources:
        mem_mb=500,
    message:
        "Listing the audits"
    shell:
        "python {input.program} --experiment {input.experiment} 2> {log}"
