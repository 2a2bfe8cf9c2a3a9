"""The experiment, its paths, and what all rules share: programs, sources, GPUs."""

import gc
import inspect
import re
import shlex
import shutil

from dpcanary import stages
from dpcanary.config import parse_experiment
from dpcanary.errors import InputError
from dpcanary.workflow import digest_of_imports, imports_of
from snakemake.exceptions import WorkflowError

# Thousands of jobs are millions of objects that live to the end: looking for garbage among them
# would be a tenth of the time that it takes to plan them.
gc.set_threshold(100_000, 50, 1000)

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
