"""Figures: PDF, PNG, and the plotted numbers as TSV. One rule draws all kinds."""


# Seconds each: not worth a place in a cluster's queue.
localrules:
    draw_figure,


rule draw_figure:
    input:
        unpack(FIGURES.inputs),
        program=program("draw_figure"),
    output:
        png=report(
            f"{RESULTS}/figures/{{figure}}.png",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        tsv=f"{RESULTS}/figures/{{figure}}.tsv",
    log:
        f"{LOGS}/draw_figure/{{figure}}.log",
    conda:
        "../envs/figures.yaml"
    resources:
        mem_mb=1000,
    params:
        code=lambda wildcards: code("draw_figure", FIGURES.kind(wildcards).draw),
        files=files_in(),
        options=options_of(
            FIGURES.job("figure"),
            draw=lambda wildcards: FIGURES.kind(wildcards).draw,
            inputs=lambda wildcards: [*FIGURES.kind(wildcards).inputs],
            settings=FIGURES.settings,
        ),
        # The report shows it; see report/figure.rst.
        caption=lambda wildcards: "\n\n".join(FIGURES.kind(wildcards).caption),
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} {params.options} {params.files}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} > {log} 2>&1"
