"""From shards to scores, from scores to lower bounds, and all bounds in one table."""


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
    message:
        "Scoring the runs of {wildcards.audit}"
    shell:
        "python {input.program:q} --audit {wildcards.audit} --settings {params.settings:q}"
        " {params.canary} --shards {input.shards} --output {output} 2> {log}"


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
        estimates=expand(f"{RESULTS}/estimates/{{audit}}.tsv", audit=EXPERIMENT.audits),
        accounting=expand(
            f"{RESULTS}/accounting/{{audit}}.tsv", audit=EXPERIMENT.audits
        ),
    output:
        report(
            f"{RESULTS}/summary.tsv",
            caption="../report/summary.rst",
            category="Numbers",
            labels={"what": "every bound, by audit and step"},
        ),
    log:
        f"{LOGS}/summarise.log",
    conda:
        "../envs/estimation.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    message:
        "Summarising all audits"
    shell:
        "python {input.program:q} --experiment {input.experiment} --estimates {input.estimates}"
        " --accounting {input.accounting} --output {output} 2> {log}"
