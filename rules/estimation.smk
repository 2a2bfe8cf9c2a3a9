"""From shards to scores, from scores to lower bounds, and all bounds in one table."""


# Seconds each: not worth a place in a cluster's queue.
localrules:
    score_runs,
    estimate,
    summarise,


rule score_runs:
    input:
        program=program("score_runs"),
        library=library("score_runs"),
        shards=shards_of,
        canary=canary_option,
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
        settings=told(stages.ScoringStage),
        canary=lambda wildcards, input: (
            f"--canary {input.canary}" if input.canary else ""
        ),
        # Thousands of paths would be longer than a command may be.
        shards=lambda wildcards, input: Path(input.shards[0]).parent,
        num_shards=lambda wildcards, input: len(input.shards),
    message:
        "Scoring the runs of {wildcards.audit}"
    shell:
        "python {input.program:q} --audit {wildcards.audit} --settings {params.settings:q}"
        " {params.canary} --shards {params.shards} --num-shards {params.num_shards}"
        " --output {output} 2> {log}"


rule estimate:
    input:
        program=program("estimate"),
        library=library("estimate"),
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
        settings=told(stages.EstimationStage),
    message:
        "Estimating epsilon of {wildcards.audit}"
    shell:
        "python {input.program:q} --settings {params.settings:q} --scores {input.scores}"
        " --output {output} 2> {log}"


rule summarise:
    input:
        program=program("summarise"),
        library=library("summarise"),
        experiment=RESOLVED_CONFIG,
        estimates=summarised(f"{RESULTS}/estimates/{{audit}}.tsv"),
        accounting=summarised(f"{RESULTS}/accounting/{{audit}}.tsv"),
    output:
        report(
            f"{RESULTS}/{{table}}.tsv",
            caption="../report/summary.rst",
            category="Numbers",
            labels={"every bound of": "{table}"},
        ),
    log:
        f"{LOGS}/summarise/{{table}}.log",
    wildcard_constraints:
        table=any_of(SUMMARIES),
    conda:
        "../envs/estimation.yaml"
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 1000 * attempt,
        runtime=lambda wildcards, attempt: 30 * attempt,
    params:
        sweeps=lambda wildcards: SUMMARIES[wildcards.table],
    message:
        "Summarising the audits of {wildcards.table}"
    shell:
        "python {input.program:q} --experiment {input.experiment} --sweeps {params.sweeps}"
        f" --estimates {RESULTS}/estimates --accounting {RESULTS}/accounting"
        " --output {output} 2> {log}"
