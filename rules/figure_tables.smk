"""Tables that figures need beside the summary."""


# Seconds each: not worth a place in a cluster's queue.
localrules:
    estimate_by_runs,
    compare_adjacencies,


rule estimate_by_runs:
    input:
        program=program("estimate_by_runs"),
        library=library("estimate_by_runs"),
        scores=f"{RESULTS}/scores/{{audit}}.npz",
    output:
        f"{RESULTS}/estimates_by_runs/{{figure}}/{{audit}}.tsv",
    log:
        f"{LOGS}/estimate_by_runs/{{figure}}/{{audit}}.log",
    wildcard_constraints:
        figure=figures_of("epsilon_by_runs"),
    conda:
        "../envs/estimation.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        settings=told(stages.EstimationStage),
        num_runs=of_figure("num_runs"),
    message:
        "Estimating epsilon of {wildcards.audit} by its number of runs"
    shell:
        "python {input.program:q} --settings {params.settings:q} --scores {input.scores}"
        " --num-runs {params.num_runs} --output {output} 2> {log}"


rule compare_adjacencies:
    input:
        program=program("compare_adjacencies"),
        library=library("compare_adjacencies"),
    output:
        f"{RESULTS}/ratios/{{figure}}.tsv",
    log:
        f"{LOGS}/compare_adjacencies/{{figure}}.log",
    wildcard_constraints:
        figure=figures_of("adjacency_ratio"),
    conda:
        "../envs/accounting.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        delta=EXPERIMENT.settings.delta,
        sample_rates=of_figure("sample_rates"),
        noise_multipliers=of_figure("noise_multipliers"),
        num_steps=of_figure("num_steps"),
    message:
        "Accounting figure {wildcards.figure} under both adjacencies"
    shell:
        "python {input.program:q} --delta {params.delta} --sample-rates {params.sample_rates}"
        " --noise-multipliers {params.noise_multipliers} --num-steps {params.num_steps}"
        " --output {output} 2> {log}"
