"""The figures: PDF, PNG, and the plotted numbers as TSV."""


rule figure_epsilon_by_step:
    input:
        program=program("figure_epsilon_by_step"),
        library=library("figure_epsilon_by_step"),
        summary=f"{RESULTS}/summary.tsv",
    output:
        png=drawn("epsilon_by_step"),
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        tsv=f"{RESULTS}/figures/{{figure}}.tsv",
    log:
        f"{LOGS}/figures/{{figure}}.log",
    wildcard_constraints:
        figure=figures_of("epsilon_by_step"),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        sweeps=sweeps_of,
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --summary {input.summary} --sweeps {params.sweeps}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"


rule figure_epsilon_by_noise:
    input:
        program=program("figure_epsilon_by_noise"),
        library=library("figure_epsilon_by_noise"),
        summary=f"{RESULTS}/summary.tsv",
    output:
        png=drawn("epsilon_by_noise"),
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        tsv=f"{RESULTS}/figures/{{figure}}.tsv",
    log:
        f"{LOGS}/figures/{{figure}}.log",
    wildcard_constraints:
        figure=figures_of("epsilon_by_noise"),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        sweeps=sweeps_of,
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --summary {input.summary} --sweeps {params.sweeps}"
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
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --scores {input.scores}"
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
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --scores {input.scores} --profiles {input.profiles}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"
