"""Other figures: PDF, PNG, and the plotted numbers as TSV."""


# Seconds each: not worth a place in a cluster's queue.
localrules:
    figure_test_accuracy,
    figure_adjacency_ratio,
    figure_score_histograms,
    figure_trade_off,


rule figure_test_accuracy:
    input:
        program=program("figure_test_accuracy"),
        library=library("figure_test_accuracy"),
        scores=shown(f"{RESULTS}/scores/{{audit}}.npz"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        png=drawn("test_accuracy"),
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        tsv=f"{RESULTS}/figures/{{figure}}.tsv",
    log:
        f"{LOGS}/figures/{{figure}}.log",
    wildcard_constraints:
        figure=figures_of("test_accuracy"),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        note=of_figure("note"),
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --scores {input.scores} --summary {input.summary}"
        " --note={params.note:q}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"


rule figure_adjacency_ratio:
    input:
        program=program("figure_adjacency_ratio"),
        library=library("figure_adjacency_ratio"),
        ratios=f"{RESULTS}/ratios/{{figure}}.tsv",
    output:
        png=drawn("adjacency_ratio"),
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        tsv=f"{RESULTS}/figures/{{figure}}.tsv",
    log:
        f"{LOGS}/figures/{{figure}}.log",
    wildcard_constraints:
        figure=figures_of("adjacency_ratio"),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        note=of_figure("note"),
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --ratios {input.ratios}"
        " --note={params.note:q}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"


rule figure_score_histograms:
    input:
        program=program("figure_score_histograms"),
        library=library("figure_score_histograms"),
        scores=shown(f"{RESULTS}/scores/{{audit}}.npz"),
    output:
        png=drawn("score_histograms"),
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        tsv=f"{RESULTS}/figures/{{figure}}.tsv",
    log:
        f"{LOGS}/figures/{{figure}}.log",
    wildcard_constraints:
        figure=figures_of("score_histograms"),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        note=of_figure("note"),
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --scores {input.scores}"
        " --note={params.note:q}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"


rule figure_trade_off:
    input:
        program=program("figure_trade_off"),
        library=library("figure_trade_off"),
        scores=shown(f"{RESULTS}/scores/{{audit}}.npz"),
        profiles=shown(f"{RESULTS}/profiles/{{audit}}.tsv"),
    output:
        png=drawn("trade_off"),
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        tsv=f"{RESULTS}/figures/{{figure}}.tsv",
    log:
        f"{LOGS}/figures/{{figure}}.log",
    wildcard_constraints:
        figure=figures_of("trade_off"),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        note=of_figure("note"),
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --scores {input.scores} --profiles {input.profiles}"
        " --note={params.note:q}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"
