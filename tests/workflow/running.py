"""Commands as a user gives them, with the `python` of these tests or of another environment."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SNAKEFILE = str(Path(__file__).parents[2] / "Snakefile")
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
PROGRAMS = Path(sys.executable).parent


def environment(programs: Path = PROGRAMS, **variables: str) -> dict[str, str]:
    """Of a process whose jobs find the programs of a folder first."""
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **variables}


def printed_by(
    command: Sequence[str],
    folder: Path,
    *,
    fails: bool = False,
    programs: Path = PROGRAMS,
    **variables: str,
) -> str:
    """Runs a command in a folder, and returns all that it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(programs, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr
