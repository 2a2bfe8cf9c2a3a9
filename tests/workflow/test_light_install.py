"""The light install: what `pip install dpcanary` brings, and what it says of the rest."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import ROOT, built_package

MOST_BYTES = 400e6
TRAINING = ("--sample-rate", "0.25", "--num-steps", "200", "--delta", "1e-5")
NOISE = ("--noise-multiplier", "4")

Run = Callable[..., subprocess.CompletedProcess[str]]

# The check of a new machine builds such an environment, too, and tries two commands in it.
pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the built package alone, beside files of scores."""
    folder = tmp_path_factory.mktemp("light")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv/bin/pip", "--quiet", "install", "--constraint"]
    subprocess.run([*pip, ROOT / "constraints.txt", built_package()], check=True)
    rng = np.random.default_rng(0)
    scores = {"world0_scores": rng.normal(2, 1, 60), "world1_scores": rng.normal(0, 1, 60)}
    np.savez(folder / "scores.npz", **scores)
    (folder / "scores.parquet").write_bytes(b"PAR1")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    options = {"cwd": folder, "capture_output": True, "text": True, "check": False}

    def run(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(folder / "venv/bin" / program), *arguments]
        return subprocess.run(command, env={"HOME": str(folder), **variables}, **options)

    return run


def test_it_is_small_and_has_nothing_that_training_needs(run, folder):
    files = [path for path in (folder / "venv").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files if not path.is_symlink()) < MOST_BYTES
    for package in ("torch", "snakemake", "matplotlib", "numba", "pyarrow"):
        done = run("python", "-c", f"import {package}")
        assert done.stderr.endswith(f"No module named '{package}'\n")


def test_commands_work_or_say_which_words_to_type(run):
    """Other commands, and public names, are in test_extras.py."""
    for arguments in (("account", *TRAINING, *NOISE), ("plan", *TRAINING, *NOISE), ("init", "a")):
        assert run("dpcanary", *arguments).stdout
    for arguments, needed in (
        (("audit", "--features", "digits", *TRAINING, *NOISE), "pip install 'dpcanary[train]'"),
        (("estimate", "scores.parquet", "--delta", "1e-5"), "pip install pyarrow"),
    ):
        done = run("dpcanary", *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        [line] = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert needed in line


@pytest.mark.parametrize("options", [("--all",), ("--significance", "0.1"), ("--one-run",)])
def test_estimates_are_those_of_the_full_install(run, folder, options):
    """Also where a table of critical values is computed, without Numba."""
    command = ("estimate", "scores.npz", "--delta", "1e-5", "--json", *options)
    done = run("dpcanary", *command)
    # With the same variables: one for OpenBLAS changes the last digit. It has a cache of its own.
    full = run(sys.executable, "-m", "dpcanary", *command, HOME=str(folder / "full"))
    assert (done.returncode, full.returncode) == (0, 0), done.stderr + full.stderr
    assert done.stdout == full.stdout
