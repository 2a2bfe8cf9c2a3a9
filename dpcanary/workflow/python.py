"""Which `python`, and which library, the jobs' commands find."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from dpcanary.program import OWN_CODE

# The folder that contains the package `dpcanary`.
LIBRARY = Path(__file__).parents[2]
# In a built package, the workflow's files are copied here; see pyproject.toml.
_INSTALLED = Path(__file__).parent / "files"
# The folder of the Snakefile and of all that belongs to it.
WORKFLOW = _INSTALLED if _INSTALLED.is_dir() else LIBRARY
SNAKEFILE = WORKFLOW / "Snakefile"
PROFILE = WORKFLOW / "profiles" / "default"
DEMO = WORKFLOW / "config" / "demo.yaml"


def is_clone() -> bool:
    """Whether the library runs from a clone of the repository."""
    return WORKFLOW == LIBRARY


# Every program imports it. A clone brings the library along, so it is enough that its packages are
# there.
_NEEDED = "tqdm" if is_clone() else "dpcanary.program"


def path_of_python() -> str:
    """A shell command that puts this Python's folder first on the path, if that is needed.

    It is where Snakemake is started by its path, without activating its environment: `python` is
    then another one, or none.
    """
    found = shutil.which("python")
    if found and Path(found).parent == Path(sys.executable).parent:
        return ""
    if found:
        check = [found, "-c", f"import {_NEEDED}"]
        if subprocess.run(check, capture_output=True, check=False).returncode == 0:
            return ""  # an environment of the user's choice
    return f"export PATH={shlex.quote(str(Path(sys.executable).parent))}{os.pathsep}$PATH; "


def paths_of_code(*, own: Path | None) -> str:
    """A shell command by which jobs import this library, unless it is installed beside Python.

    Args:
        own: folder of the user's own code, which programs look up last; None if there is none.
    """
    found = f"export {OWN_CODE}={shlex.quote(str(own))}; " if own else ""
    if is_clone():
        library = shlex.quote(str(LIBRARY))
        found += f"export PYTHONPATH={library}${{{{PYTHONPATH:+:$PYTHONPATH}}}}; "
    return found
