"""Figures: PDF, PNG, and the plotted numbers as TSV.

All rules, here and in figures_of_attacks.smk, are variants of the first one, with their own program,
inputs and options.
"""

from dpcanary.settings.figure import BOUNDS_KINDS


# Seconds each: not worth a place in a cluster's queue.
localrules:
    figure_bounds,
    figure_test_accuracy,
    figure_adjacency_ratio,


rule figure_bounds:
    input:
        program=program("figure_bounds"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        **files_of_figure("figure_bounds"),
    log:
        f"{LOGS}/figure_bounds/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds(*BOUNDS_KINDS)),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        code=code("figure_bounds"),
        note=FIGURES.setting("note"),
        options=FIGURES.options(
            "summary", settings=["sweeps", "axis", "panels", "lines", "in_sample"]
        ),
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} {params.options} --note={params.note:q}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"


use rule figure_bounds as figure_test_accuracy with:
    input:
        program=program("figure_test_accuracy"),
        scores=FIGURES.files("scores/{audit}.npz"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        **files_of_figure("figure_test_accuracy"),
    log:
        f"{LOGS}/figure_test_accuracy/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds("test_accuracy")),
    params:
        code=code("figure_test_accuracy"),
        note=FIGURES.setting("note"),
        options=FIGURES.options("scores", "summary"),


use rule figure_bounds as figure_adjacency_ratio with:
    input:
        program=program("figure_adjacency_ratio"),
        ratios=f"{RESULTS}/ratios/{{figure}}.tsv",
    output:
        **files_of_figure("figure_adjacency_ratio"),
    log:
        f"{LOGS}/figure_adjacency_ratio/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds("adjacency_ratio")),
    params:
        code=code("figure_adjacency_ratio"),
        note=FIGURES.setting("note"),
        options=FIGURES.options("ratios"),
