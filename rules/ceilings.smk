"""The most that audits of some size can prove without assumptions, for figures that show it."""


# Seconds each, or a minute where critical values are computed.
localrules:
    bound_ceiling,


rule bound_ceiling:
    input:
        program=program("bound_ceiling"),
        scores=FIGURES.scores_of_ceilings,
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
        code=code("bound_ceiling", *EXPERIMENT.rule_functions),
        settings=lambda wildcards: PRODUCTS.ceilings(wildcards.figure).settings,
        job=FIGURES.job("ceilings"),
    message:
        "Finding what can be proven without assumptions in figure {wildcards.figure}"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --scores {input.scores}"
        " --output {output} 2> {log}"
