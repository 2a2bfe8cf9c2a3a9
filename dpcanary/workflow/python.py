"""Which `python`, and which library, the jobs' commands find."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dpcanary.workflow.location import LIBRARY, is_clone

# Every program imports it.
_NEEDED = "tqdm"


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


def python_path(*, own: Sequence[Path]) -> str:
    """A shell command by which jobs import this library, unless it is installed beside Python.

    Args:
        own: folders of the user's own code, which come last.
    """
    folders = [*([LIBRARY] if is_clone() else []), *own]
    if not folders:
        return ""
    first, *others = (shlex.quote(str(folder)) for folder in folders)
    return f"export PYTHONPATH={':'.join([first, *others])}${{{{PYTHONPATH:+:$PYTHONPATH}}}}; "
