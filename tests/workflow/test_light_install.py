"""The light install: accounting, estimation and reading of results without PyTorch."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
TRAINING = ("--sample-rate", "0.25", "--num-steps", "200", "--delta", "1e-5")
NOISE = ("--noise-multiplier", "4")


def listed() -> list[str]:
    lines = (ROOT / "light.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_it_is_a_part_of_what_the_package_needs():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {*listed()} < {*needed}
    names = {re.split("[>=<]", one)[0] for one in listed()}
    assert not names & {"torch", "transformers", "sentence-transformers", "snakemake"}


@pytest.mark.long
def test_it_is_enough_for_what_the_documents_say(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "light"], check=True)
    python = str(tmp_path / "light/bin/python")
    pip = [python, "-m", "pip", "--quiet", "install"]
    constraints = ["--constraint", ROOT / "constraints.txt", "--requirement", ROOT / "light.txt"]
    subprocess.run([*pip, *constraints], check=True)
    subprocess.run([*pip, "--no-deps", ROOT], check=True)
    rng = np.random.default_rng(0)
    scores = {"world0_scores": rng.normal(2, 1, 60), "world1_scores": rng.normal(0, 1, 60)}
    np.savez(tmp_path / "scores.npz", **scores)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [tmp_path / "light/bin/dpcanary", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    for arguments in (
        ("account", *TRAINING, *NOISE),
        ("statement", *TRAINING, *NOISE),
        ("calibrate", *TRAINING, "--epsilon", "8", "--adjacency", "substitute"),
        ("plan", *TRAINING, *NOISE),
        ("estimate", "scores.npz", "--delta", "1e-5", "--plot", "scores.png"),
        ("init", "study"),
    ):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
    lacking = run("audit", "--features", "digits", *TRAINING[2:], *NOISE)
    assert lacking.returncode == 1
    assert re.search(r"error: this needs the package '\w+', which is not installed", lacking.stderr)
