"""Which `python` the jobs' commands find."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

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
