"""Snakemake in a fork of a process that has imported it, which takes longer than a small plan.

The library is imported in the fork: it may be that of a copy of the project, which a test edits.
"""

import multiprocessing
import os
import runpy
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["__main__", "snakemake.cli", "pandas", "pydantic", "tqdm"])
_PROJECT = str(Path(__file__).parents[1])
_OF_PYTHON = (sys.base_prefix, sysconfig.get_path("purelib"))


def printed_by_fork(
    module: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[int, str]:
    with tempfile.NamedTemporaryFile("r") as printed:
        request = module, [*arguments], str(folder), {**environment}, printed.name
        process = _FORKS.Process(target=_be, args=request)
        # The server starts in the working folder, which may have modules of Python's names.
        with patch.dict(os.environ, {"PYTHONSAFEPATH": "1"}):
            process.start()
        process.join()
        status, text = process.exitcode, printed.read()
        process.close()
    return status or 0, text


def _be(
    module: str, arguments: list[str], folder: str, environment: dict[str, str], printed: str
) -> None:
    stream = os.open(printed, os.O_WRONLY | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    own = environment.get("PYTHONPATH", "").split(os.pathsep)
    of_python = [path for path in sys.path if path.startswith(_OF_PYTHON)]
    first = [] if "PYTHONSAFEPATH" in environment else [folder]
    # The project is installed from its folder, which Python puts behind all else.
    sys.path[:] = [*first, *filter(None, own), *of_python, _PROJECT]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
