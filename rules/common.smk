"""The experiment, its paths, and what all rules share: programs, their code, GPUs."""

import functools
import gc
import os
import re
import shutil

from dpcanary.core.argument_checks import large_delta
from dpcanary.errors import InputError
from dpcanary.core.installation import IS_CLONE, LIBRARY
from dpcanary.experiment.data_files import DataFiles
from dpcanary.experiment.config_parsing import read_config
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.products import Products
from dpcanary.figures.planned import check_figures
from dpcanary.workflow.audit_files import AuditRules
from dpcanary.workflow.code_digests import check_functions, digest_of_code
from dpcanary.workflow.figure_files import FigureRules
from dpcanary.workflow.audit_files import (
    files_in,
    option,
    options_of,
    with_known_signature,
)
from dpcanary.workflow.job_python import JobServer, path_of_python, paths_of_code
from dpcanary.workflow.record_files import SourceRules
from snakemake.exceptions import WorkflowError

# Thousands of jobs are millions of objects that live to the end: looking for garbage among them
# would be a tenth of the time that it takes to plan them.
gc.set_threshold(100_000, 50, 1000)

# Short paths where it is run as the README says, whole ones elsewhere.
BASE = Path() if Path.cwd() == FOLDER else FOLDER
CATALOGUE_PATH = BASE / "config/datasets.yaml"

try:
    for path in workflow.overwrite_configfiles if IS_MAIN else []:
        read_config(Path(path))  # more strictly than Snakemake has read it
    EXPERIMENT = parse_experiment(config)
    OWN_CODE = Path.cwd() if EXPERIMENT.own_functions else None
    sys.path += [str(OWN_CODE)] * bool(OWN_CODE)
    FILES = DataFiles(EXPERIMENT.settings)
    # With an archive, no model is made, and its module may be missing.
    if workflow.is_main_process and not FILES.archive:
        check_functions(EXPERIMENT.functions)
    if IS_MAIN:
        check_figures(EXPERIMENT)
        FILES.check()  # as a module, another rule may make them
    EXPERIMENT = FILES.with_hashes(EXPERIMENT)
    PRODUCTS = Products(EXPERIMENT)
    SOURCES = SourceRules(PRODUCTS, FILES)
    # What an archive of released observations holds: the origins of files, by their path.
    RELEASED = PRODUCTS.check_release(FILES.archive) if FILES.archive else {}
except InputError as error:
    raise WorkflowError(str(error)) from None

CONDA = bool(workflow.deployment_settings.deployment_method)
if CONDA and not IS_CLONE:
    raise WorkflowError(
        "environments of rules (--sdm conda) need a clone of dpcanary, and this is an installed"
        " package: run without them, or use the Snakefile of a clone"
    )
if IS_MAIN and workflow.is_main_process:
    for name, dataset in EXPERIMENT.settings.datasets.items():
        if reason := large_delta(EXPERIMENT.settings.delta, dataset.num_records):
            print(f"warning: dataset {name}: {reason}", file=sys.stderr)
if workflow.resource_settings.cores == 0:
    raise WorkflowError("--cores 0 runs no job; give at least --cores 1")

# Jobs find this Python by it (with --sdm conda, that of the rule's environment), this library, and
# models of the user's own. As a module, the rules of others get it, too: only if it is needed.
SETUP = ("" if CONDA else path_of_python()) + paths_of_code(own=OWN_CODE)
SERVER = None
if IS_MAIN and workflow.is_main_process and not CONDA:
    SERVER = JobServer(SETUP)
    SETUP += SERVER.shell
if IS_MAIN or SETUP:
    shell.prefix(f"{SETUP}set -euo pipefail; ")

RESULTS = f"results/{EXPERIMENT.settings.experiment}"
LOGS = f"{RESULTS}/logs"
RESOLVED_CONFIG = f"{RESULTS}/experiment.json"
PLANNED_CONFIG = f"{RESULTS}/planned.json"
AUDITS = AuditRules(RESULTS, PRODUCTS)
FIGURES = FigureRules(RESULTS, PRODUCTS)


def program(rule):
    """The rule's program; it has the rule's name."""
    return str(BASE / "scripts" / f"{rule}.py")


# How most rules call their program.
COMMAND = (
    "python {input.program:q} {params.options} {params.files}"
    " --output {output:q} > {log:q} 2>&1"
)


@functools.cache
def code(rule, *functions):
    """Hash of the code that the rule's program depends on.

    As a parameter it stands for dozens of modules: as inputs, Snakemake would look at each of
    them for every job.
    """
    return digest_of_code(
        FOLDER / "scripts" / f"{rule}.py", LIBRARY, functions=functions
    )


def code_for_audit(rule, functions=lambda audit: audit.own_functions):
    """Hash of the program's code and of functions of the job's audit, by default its own model."""
    return AUDITS.by_audit(lambda name: code(rule, *functions(EXPERIMENT.audits[name])))


def gpus_of(device):
    """GPUs that a job asks for: `auto` asks where it can see that there is one."""
    has_gpu = device == "cuda" or (device == "auto" and shutil.which("nvidia-smi"))
    return 1 if has_gpu else 0


def by_attempt(amount):
    """A resource of which a job that failed gets more."""
    return with_known_signature(lambda wildcards, attempt: amount * attempt)


def on_device(*, mem_mb, runtime):
    """The resources of a job that computes on the config's device."""
    device = EXPERIMENT.settings.device
    return {
        "mem_mb": by_attempt(mem_mb),
        "runtime": by_attempt(runtime),
        "gpu": gpus_of(device),
    }


def any_of(names):
    """A wildcard constraint: one of these names, or nothing at all where there are none."""
    return "|".join(map(re.escape, names)) or "(?!)"


def encoded(wildcards):
    """A dataset that is made from the job's features."""
    return SOURCES.encoded[wildcards.features]


wildcard_constraints:
    audit=any_of(EXPERIMENT.audits),
    dataset=any_of(EXPERIMENT.settings.datasets),
    encoder=any_of(SOURCES.on_the_hub),
    features=any_of(SOURCES.encoded),
    figure=any_of(EXPERIMENT.settings.figures),
    file=any_of(SOURCES.source_of_file),
    optimised=any_of(PRODUCTS.optimised_canaries.audits),
    pretrained=any_of(PRODUCTS.pretrained_models.audits),
    reference=any_of(PRODUCTS.reference_models.audits),
    runs=any_of(EXPERIMENT.first_audits),
    shard="[0-9]+",
    table=any_of(FIGURES.tables),
