"""From shards to scores, from scores to lower bounds, and all bounds in one table."""

from dpcanary.estimation.settings import EstimationStage
from dpcanary.scoring.settings import ScoringStage


# Seconds each: not worth a place in a cluster's queue.
localrules:
    score_runs,
    estimate,
    estimate_by_runs,
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
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=AUDITS.by_audit(
            lambda audit: code("score_runs", AUDITS.score_function(audit))
        ),
        settings=AUDITS.stage_as_json(ScoringStage),
        names=AUDITS.labels,
        canaries=lambda wildcards, input: option("canaries", *input.canaries),
        # Thousands of paths would be longer than a command may be.
        shards=lambda wildcards, input: Path(input.shards[0]).parent,
        num_shards=lambda wildcards, input: len(input.shards),
        job=AUDITS.job("scores"),
    message:
        "Scoring the runs of {wildcards.audit}"
    shell:
        "python {input.program:q} --job {params.job:q} --names {params.names} --settings {params.settings:q}"
        " {params.canaries} --shards {params.shards} --num-shards {params.num_shards}"
        " --output {output} 2> {log}"


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
    threads: 1
    resources:
        mem_mb=1000,
    params:
        code=code("estimate", *EXPERIMENT.rule_functions),
        settings=AUDITS.stage_as_json(EstimationStage),
        job=AUDITS.job("estimates"),
    message:
        "Estimating epsilon of {wildcards.audit}"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --scores {input.scores}"
        " --output {output} 2> {log}"


rule estimate_by_runs:
    input:
        program=program("estimate_by_runs"),
        scores=f"{RESULTS}/scores/{{audit}}.npz",
    output:
        f"{RESULTS}/estimates_by_runs/{{figure}}/{{audit}}.tsv",
    log:
        f"{LOGS}/estimate_by_runs/{{figure}}/{{audit}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.by_runs),
    conda:
        "../envs/estimation.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        code=code("estimate_by_runs", *EXPERIMENT.rule_functions),
        settings=AUDITS.stage_as_json(EstimationStage),
        num_runs=FIGURES.numbers_of_runs,
        job=FIGURES.job_by_runs,
    message:
        "Estimating epsilon of {wildcards.audit} by its number of runs"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --scores {input.scores}"
        " --num-runs {params.num_runs} --output {output} 2> {log}"


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
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 1000 * attempt,
        runtime=lambda wildcards, attempt: 30 * attempt,
    params:
        code=code("summarise"),
        sweeps=lambda wildcards: FIGURES.tables[wildcards.table],
        # Of the files, not RESULTS: as a module, the workflow may have a prefix.
        estimates=lambda wildcards, input: os.path.dirname(input.estimates[0]),
        accounting=lambda wildcards, input: os.path.dirname(input.accounting[0]),
        job=FIGURES.job_of_table,
    message:
        "Summarising the audits of {wildcards.table}"
    shell:
        "python {input.program:q} --job {params.job:q} --experiment {input.experiment} --sweeps {params.sweeps}"
        " --estimates {params.estimates} --accounting {params.accounting}"
        " --output {output} 2> {log}"
