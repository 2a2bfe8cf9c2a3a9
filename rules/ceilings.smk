"""The most that audits of some size can prove without assumptions, for figures that show it."""

from dpcanary.estimation.stage import EstimationStage


# Seconds each, or a minute where critical values are computed.
localrules:
    bound_ceiling,


rule bound_ceiling:
    input:
        program=program("bound_ceiling"),
        scores=FIGURES.files("scores/{audit}.npz"),
    output:
        f"{RESULTS}/ceilings/{{figure}}.tsv",
    log:
        f"{LOGS}/bound_ceiling/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.proven),
    conda:
        "../envs/estimation.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        code=code("bound_ceiling"),
        settings=lambda wildcards: EXPERIMENT.stage(
            EstimationStage, audit=FIGURES.first_audit(wildcards)
        ).to_json(),
    message:
        "Finding what can be proven without assumptions in figure {wildcards.figure}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --scores {input.scores}"
        " --output {output} 2> {log}"
