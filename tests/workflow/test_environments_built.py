"""Each role's environment, built from its listed packages alone, runs that role's programs.

conda is not needed: PyPI has the same versions. The experiment goes through the roles in their
order, and at each the jobs' `python` is that environment's.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from miniatures import cifar10, write_encoders
from running import SNAKEFILE, SNAKEMAKE, TINY, Project, printed_by
from test_canary_sets import CONFIG as OF_SETS
from test_environments import ENVIRONMENTS, listed, rules_by_environment

# The last rules of each role: what has run before a role's turn is there already, so each turn runs
# the role's own rules alone.
TURNS = {
    "encoding": ["extract_features"],
    "data": ["prepare_dataset"],
    "accounting": ["account", "compare_adjacencies"],
    "training": ["train_shard"],
    "estimation": ["summarise", "estimate_by_runs", "bound_ceiling"],
    "figures": ["all"],
}
# Downloads have tests of their own, against a server. This experiment trains, so it has no release.
NOT_RUN = {"download_file", "download_encoder", "unpack_release"}
# It logs by the figures' names.
FIGURES = {"draw_figure"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the small experiment, and sweeps of images with and without encoder."""
    project = Project.new(tmp_path_factory.mktemp("roles"))
    folder = project.folder
    write_encoders(folder)
    pixels = {"source": "cifar10", "files": [str(cifar10(folder))], "num_records": 40}
    datasets = {"images": {**pixels, "encoder": str(folder / "vit")}}
    datasets["pixels"] = {**pixels, "num_test": 10}
    sweeps = {
        "head": {**TINY["audits"]["steps"], "dataset": "images", "canary": ["gradient", "natural"]},
        "sets": {**OF_SETS["audits"]["tuned"], "dataset": "pixels"},
    }
    figures = {
        "accuracy": {"kind": "test_accuracy", "sweeps": ["head"]},
        "sets": {"kind": "canary_sets", "sweeps": ["sets"]},
    }
    config = {key: {**TINY[key], **more} for key, more in (
        ("datasets", datasets), ("audits", sweeps), ("figures", figures)
    )}  # fmt: skip
    rules = [*TINY["threshold_rules"], "mahloujifar"]
    project.write({**TINY, **config, "threshold_rules": rules, "independent": "slots"})
    return folder


def built(environment: str, folder: Path) -> Path:
    """The folder of an environment's programs, with the packages that its file lists."""
    place = folder / f"env-{environment}"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    versions = listed(environment).items()
    packages = [f"{name}=={one}" for name, one in versions if name not in ("python", "pip")]
    # Few of their modules are ever imported, so none is compiled in advance.
    install = [str(place / "bin/pip"), "install", "--quiet", "--no-compile"]
    printed_by([*install, *packages], folder)
    return place / "bin"


def snakemake(folder: Path, programs: Path, *options: str, own: Path | None = None) -> str:
    """Runs Snakemake, whose jobs' `python` is the environment's, or its own."""
    first = [str(own), "-m", "snakemake"] if own else SNAKEMAKE
    command = [*first, "--cores", "2", "--snakefile", SNAKEFILE, *options]
    command += ["--configfile", "experiment.yaml"]
    return printed_by(command, folder, programs=programs, HF_HUB_OFFLINE="1")


def test_every_environment_has_its_turn():
    assert {*TURNS, "costs", "snakemake"} == set(ENVIRONMENTS)


@pytest.mark.exhaustive
def test_each_role_runs_in_its_own_environment(folder):
    for environment, last in TURNS.items():
        snakemake(folder, built(environment, folder), "--until", *last)
        for rule in {*rules_by_environment()[environment]} - NOT_RUN - FIGURES:
            assert list(folder.glob(f"*/**/logs/{rule}*")), f"{rule} has not run"
    assert (folder / "results/tiny/summary.tsv").exists()
    for figure in yaml.safe_load((folder / "experiment.yaml").read_text())["figures"]:
        assert (folder / f"results/tiny/figures/{figure}.png").exists()


@pytest.mark.exhaustive
def test_costs_and_plans_have_their_own_environments(folder):
    assert "core-hours" in snakemake(folder, built("costs", folder), "estimate_cost")
    programs = built("snakemake", folder)
    snakemake(folder, programs, "--dry-run", own=programs / "python")
