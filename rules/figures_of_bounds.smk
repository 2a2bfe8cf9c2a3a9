"""Figures of lower and upper bounds: PDF, PNG, and the plotted numbers as TSV."""


# Seconds each: not worth a place in a cluster's queue.
localrules:
    figure_epsilon_by_step,
    figure_epsilon_by_noise,
    figure_epsilon_by_setting,
    figure_epsilon_by_runs,


rule figure_epsilon_by_step:
    input:
        program=program("figure_epsilon_by_step"),
        library=library("figure_epsilon_by_step"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
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
        note=of_figure("note"),
        sweeps=of_figure("sweeps"),
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --summary {input.summary} --sweeps {params.sweeps}"
        " --note={params.note:q}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"


rule figure_epsilon_by_noise:
    input:
        program=program("figure_epsilon_by_noise"),
        library=library("figure_epsilon_by_noise"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
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
        note=of_figure("note"),
        sweeps=of_figure("sweeps"),
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --summary {input.summary} --sweeps {params.sweeps}"
        " --note={params.note:q}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"


rule figure_epsilon_by_setting:
    input:
        program=program("figure_epsilon_by_setting"),
        library=library("figure_epsilon_by_setting"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        png=drawn("epsilon_by_setting"),
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        tsv=f"{RESULTS}/figures/{{figure}}.tsv",
    log:
        f"{LOGS}/figures/{{figure}}.log",
    wildcard_constraints:
        figure=figures_of("epsilon_by_setting"),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        note=of_figure("note"),
        sweeps=of_figure("sweeps"),
        setting=of_figure("setting"),
    message:
        "Drawing figure {wildcards.figure}"
    shell:
        "python {input.program:q} --summary {input.summary} --sweeps {params.sweeps}"
        " --setting {params.setting}"
        " --note={params.note:q}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"


rule figure_epsilon_by_runs:
    input:
        program=program("figure_epsilon_by_runs"),
        library=library("figure_epsilon_by_runs"),
        experiment=RESOLVED_CONFIG,
        estimates=shown(f"{RESULTS}/estimates_by_runs/{{figure}}/{{audit}}.tsv"),
        accounting=shown(f"{RESULTS}/accounting/{{audit}}.tsv"),
    output:
        png=drawn("epsilon_by_runs"),
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        tsv=f"{RESULTS}/figures/{{figure}}.tsv",
    log:
        f"{LOGS}/figures/{{figure}}.log",
    wildcard_constraints:
        figure=figures_of("epsilon_by_runs"),
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
        "python {input.program:q} --experiment {input.experiment}"
        " --estimates {input.estimates} --accounting {input.accounting}"
        " --note={params.note:q}"
        " --pdf {output.pdf} --png {output.png} --tsv {output.tsv} 2> {log}"
