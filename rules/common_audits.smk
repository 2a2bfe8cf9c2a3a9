"""What the rules of an audit ask: its settings, its files, its runs."""

from functools import cache

from dpcanary.files import sha256_of_text


def of_audit(function):
    """Makes a function of an audit's name one of the job's wildcards; called once per audit."""
    cached = cache(function)
    return quick(lambda wildcards: cached(wildcards.audit))


def told(model):
    """A params function: what the stage is told of the job's audit, as JSON."""
    return of_audit(lambda audit: EXPERIMENT.stage(model, audit=audit).to_json())


def reference_of(audit):
    """Name of the audit's reference model: audits with the same dataset and settings share it."""
    settings = EXPERIMENT.stage(stages.ReferenceStage, audit=audit).to_json()
    dataset = EXPERIMENT.audits[audit].dataset
    return f"{dataset}-{sha256_of_text(settings)[:8]}"


@of_audit
def data_of(audit):
    """The dataset file of the job's audit."""
    return f"{RESULTS}/data/{EXPERIMENT.audits[audit].dataset}.npz"


def shards_of(wildcards):
    """The shard files of the job's audit."""
    names = EXPERIMENT.audits[wildcards.audit].shards
    return expand(f"{RESULTS}/shards/{wildcards.audit}/{{shard}}.npz", shard=names)


def runs_of(wildcards):
    """The run indices of the job's shard."""
    return EXPERIMENT.audits[wildcards.audit].runs_of(wildcards.shard)


@of_audit
def runs_at_once(audit):
    """Runs in memory at once, 0 for as many as fit: a resource, since no result depends on it."""
    return EXPERIMENT.audits[audit].runs_at_once or 0


def canary_option(wildcards):
    """The canary file as an option, for audits that have one."""
    return (
        [f"{RESULTS}/canaries/{wildcards.audit}.npz"]
        if wildcards.audit in TRAINED
        else []
    )


AUDIT_OF_REFERENCE = {reference_of(audit): audit for audit in TRAINED}


wildcard_constraints:
    audit=any_of(EXPERIMENT.audits),
    dataset=any_of(EXPERIMENT.settings.datasets),
    reference=any_of(AUDIT_OF_REFERENCE),
    figure=any_of(EXPERIMENT.settings.figures),
    shard="[0-9]+",
