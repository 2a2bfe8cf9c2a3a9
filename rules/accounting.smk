"""The noise of every audit, and the epsilon that accountants give it."""

from dpcanary.accounting.audit_noise import CALIBRATION


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
    resources:
        mem_mb=2000,
    params:
        code=code_for_audit(
            "calibrate_noise",
            lambda audit: [CALIBRATION] if audit.noise_multiplier is None else [],
        ),
        files=files_in(),
        options=AUDITS.options("noise"),
    message:
        "Fixing the noise of {wildcards.runs}"
    shell:
        COMMAND


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
    resources:
        mem_mb=2000,
    params:
        code=code_for_audit(
            "account", lambda audit: filter(None, [audit.adversary.exact])
        ),
        files=files_in(),
        options=AUDITS.options("accounting"),
    message:
        "Accounting {wildcards.audit}"
    shell:
        COMMAND


rule compare_adjacencies:
    input:
        program=program("compare_adjacencies"),
    output:
        f"{RESULTS}/ratios/{{figure}}.tsv",
    log:
        f"{LOGS}/compare_adjacencies/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(
            name for name, kind in FIGURES.kinds.items() if "ratios" in kind.files
        ),
    conda:
        "../envs/accounting.yaml"
    resources:
        mem_mb=1000,
    params:
        code=code("compare_adjacencies"),
        files=files_in(),
        options=options_of(
            FIGURES.job("ratios"), settings=FIGURES.settings_of("ratios")
        ),
    message:
        "Accounting figure {wildcards.figure} under both adjacencies"
    shell:
        COMMAND
