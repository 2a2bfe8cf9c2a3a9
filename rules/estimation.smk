"""From shards to scores, from scores to bounds, and all bounds in one table."""


# Seconds each: not worth a place in a cluster's queue.
localrules:
    score_runs,
    estimate,
    estimate_by_runs,
    bound_ceiling,  # or a minute, where critical values are computed
    summarise,


rule score_runs:
    input:
        program=program("score_runs"),
        shards=AUDITS.shards,
        canaries=AUDITS.input("scores", "canaries"),
    output:
        f"{RESULTS}/scores/{{audit}}.npz",
    log:
        f"{LOGS}/score_runs/{{audit}}.log",
    conda:
        "../envs/estimation.yaml"
    resources:
        mem_mb=2000,
    params:
        code=code_for_audit(
            "score_runs",
            lambda audit: [audit.adversary.score(audit.score).function],
        ),
        files=files_in("shards"),
        options=AUDITS.options(
            "scores",
            names=AUDITS.labels,
            num_shards=lambda wildcards: len(AUDITS.shards(wildcards)),
        ),
    message:
        "Scoring the runs of {wildcards.audit}"
    shell:
        COMMAND


rule estimate:
    input:
        program=program("estimate"),
        scores=f"{RESULTS}/scores/{{audit}}.npz",
    output:
        f"{RESULTS}/estimates/{{audit}}.tsv",
    log:
        f"{LOGS}/estimate/{{audit}}.log",
    conda:
        "../envs/estimation.yaml"
    resources:
        mem_mb=1000,
    params:
        code=code("estimate", *EXPERIMENT.rule_functions),
        files=files_in(),
        options=AUDITS.options("estimates"),
    message:
        "Estimating epsilon of {wildcards.audit}"
    shell:
        COMMAND


use rule estimate as estimate_by_runs with:
    output:
        f"{RESULTS}/estimates_by_runs/{{figure}}/{{audit}}.tsv",
    log:
        f"{LOGS}/estimate_by_runs/{{figure}}/{{audit}}.log",
    wildcard_constraints:
        figure=any_of(name for name, kind in FIGURES.kinds.items() if kind.is_by_runs),
    params:
        code=code("estimate", *EXPERIMENT.rule_functions),
        files=files_in(),
        options=options_of(
            FIGURES.job_by_runs,
            settings=AUDITS.settings("estimates"),
            num_runs=FIGURES.numbers_of_runs,
        ),
    message:
        "Estimating epsilon of {wildcards.audit} by its number of runs"


rule bound_ceiling:
    input:
        program=program("bound_ceiling"),
        scores=FIGURES.scores_of_ceilings,
    output:
        f"{RESULTS}/ceilings/{{figure}}.tsv",
    log:
        f"{LOGS}/bound_ceiling/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(
            name
            for name, figure in EXPERIMENT.settings.figures.items()
            if figure.shown
        ),
    conda:
        "../envs/estimation.yaml"
    resources:
        mem_mb=1000,
    params:
        code=code("bound_ceiling", *EXPERIMENT.rule_functions),
        files=files_in(),
        options=options_of(
            FIGURES.job("ceilings"), settings=FIGURES.settings_of("ceilings")
        ),
    message:
        "Finding what can be shown without assumptions in figure {wildcards.figure}"
    shell:
        COMMAND


rule summarise:
    input:
        program=program("summarise"),
        experiment=RESOLVED_CONFIG,
        estimates=FIGURES.files_of_table("estimates"),
        accounting=FIGURES.files_of_table("accounting"),
    output:
        report(
            f"{RESULTS}/{{table}}.tsv",
            caption="../report/summary.rst",
            category="Numbers",
            labels={"every bound of": "{table}"},
        ),
    log:
        f"{LOGS}/summarise/{{table}}.log",
    conda:
        "../envs/estimation.yaml"
    resources:
        mem_mb=by_attempt(1000),
        runtime=by_attempt(30),
    params:
        code=code("summarise"),
        files=files_in("estimates", "accounting"),
        options=options_of(
            FIGURES.job_of_table,
            sweeps=lambda wildcards: FIGURES.tables[wildcards.table],
        ),
    message:
        "Summarising the audits of {wildcards.table}"
    shell:
        COMMAND
