"""The experiment, its paths, and the helpers that all rules share."""

import inspect
import json
import re
import shlex
import shutil
from functools import cache

from dpcanary import stages
from dpcanary.config import parse_experiment
from dpcanary.errors import InputError
from dpcanary.files import sha256_of_text, write_text
from dpcanary.workflow import digest_of_imports, imports_of
from snakemake.exceptions import WorkflowError

try:
    EXPERIMENT = parse_experiment(config)
except InputError as error:
    raise WorkflowError(str(error)) from None

RESULTS = f"results/{EXPERIMENT.settings.experiment}"
LOGS = f"{RESULTS}/logs"
RESOLVED_CONFIG = f"{RESULTS}/experiment.json"
# Short paths where it is run as the README says, whole ones elsewhere.
BASE = Path() if Path.cwd() == Path(workflow.basedir) else Path(workflow.basedir)
TRAINED = [name for name, audit in EXPERIMENT.audits.items() if audit.canary.is_trained]
DRAWN = [
    name for name, audit in EXPERIMENT.audits.items() if not audit.canary.is_trained
]

# Jobs find the library by this, installed or not.
shell.prefix(f"set -euo pipefail; export PYTHONPATH={shlex.quote(workflow.basedir)}; ")


def gpus_of(device):
    """GPUs that a shard asks for: `auto` asks where it can see that there is one."""
    wanted = device == "cuda" or (device == "auto" and shutil.which("nvidia-smi"))
    return 1 if wanted else 0


def any_of(names):
    """A wildcard constraint: one of these names, or nothing at all where there are none."""
    return "|".join(map(re.escape, names)) or "(?!)"


def program(rule):
    """The rule's program; it has the rule's name."""
    return str(BASE / "scripts" / f"{rule}.py")


def library(rule):
    """The modules of the library that the rule's program imports."""
    root = Path(workflow.basedir)
    return [
        str(BASE / path)
        for path in imports_of(root / "scripts" / f"{rule}.py", root)[1:]
    ]


def library_digest(rule):
    """Hash of these modules: as a parameter, it stands for them in rules of thousands of jobs.

    Snakemake looks at every input of every job: dozens of modules each would be most of its work.
    """
    root = Path(workflow.basedir)
    return digest_of_imports(root / "scripts" / f"{rule}.py", root)


def quick(function):
    """Keeps a function's signature at hand: Snakemake asks for it several times for every job."""
    function.__signature__ = inspect.signature(function)
    return function


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
