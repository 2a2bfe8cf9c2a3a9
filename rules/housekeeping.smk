"""What looks at an experiment without computing anything."""


localrules:
    resolve_config,
    list_audits,


rule resolve_config:
    output:
        RESOLVED_CONFIG,
    log:
        f"{LOGS}/resolve_config.log",
    params:
        experiment=EXPERIMENT.to_json(),
    message:
        "Writing the resolved config"
    run:
        write_text(Path(output[0]), json.dumps(json.loads(params.experiment), indent=2))


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
        "python {input.program:q} --experiment {input.experiment} 2> {log}"
