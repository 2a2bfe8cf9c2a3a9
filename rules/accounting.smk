"""The noise of every audit, and the epsilon that accountants give it."""

from dpcanary.accounting.noise import NoiseStage
from dpcanary.accounting.settings import AccountingStage


# Seconds each: not worth a place in a cluster's queue.
localrules:
    calibrate_noise,
    account,
    compare_adjacencies,


rule calibrate_noise:
    input:
        program=program("calibrate_noise"),
    output:
        f"{RESULTS}/noise/{{runs}}.json",
    log:
        f"{LOGS}/calibrate_noise/{{runs}}.log",
    priority: 2  # a target that cannot be reached shows before anything is trained
    conda:
        "../envs/accounting.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=AUDITS.by_audit(
            lambda audit: code("calibrate_noise", *AUDITS.calibration(audit))
        ),
        settings=AUDITS.stage_as_json(NoiseStage),
        job=AUDITS.job("noise"),
    message:
        "Fixing the noise of {wildcards.runs}"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --output {output} 2> {log}"


rule account:
    input:
        program=program("account"),
        noise=AUDITS.input("accounting", "noise"),
    output:
        table=f"{RESULTS}/accounting/{{audit}}.tsv",
        profile=f"{RESULTS}/profiles/{{audit}}.tsv",
    log:
        f"{LOGS}/account/{{audit}}.log",
    conda:
        "../envs/accounting.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=AUDITS.by_audit(lambda audit: code("account", *AUDITS.exact(audit))),
        settings=AUDITS.stage_as_json(AccountingStage),
        job=AUDITS.job("accounting"),
    message:
        "Accounting {wildcards.audit}"
    shell:
        "python {input.program:q} --job {params.job:q} --settings {params.settings:q} --noise {input.noise}"
        " --output {output.table} --profile {output.profile} 2> {log}"


rule compare_adjacencies:
    input:
        program=program("compare_adjacencies"),
    output:
        f"{RESULTS}/ratios/{{figure}}.tsv",
    log:
        f"{LOGS}/compare_adjacencies/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.with_file("ratios")),
    conda:
        "../envs/accounting.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        code=code("compare_adjacencies"),
        delta=EXPERIMENT.settings.delta,
        sample_rates=FIGURES.setting("sample_rates"),
        noise_multipliers=FIGURES.setting("noise_multipliers"),
        num_steps=FIGURES.setting("num_steps"),
        job=FIGURES.job("ratios"),
    message:
        "Accounting figure {wildcards.figure} under both adjacencies"
    shell:
        "python {input.program:q} --job {params.job:q} --delta {params.delta} --sample-rates {params.sample_rates}"
        " --noise-multipliers {params.noise_multipliers} --num-steps {params.num_steps}"
        " --output {output} 2> {log}"
