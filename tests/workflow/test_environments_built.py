"""Each role's environment, built from its listed packages alone, runs that role's programs.

conda is not needed: PyPI has the same versions. The tiny experiment goes through the roles in their
order, and at each the jobs' `python` is that environment's.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from miniatures import cifar10, write_encoders
from running import SNAKEFILE, SNAKEMAKE, printed_by
from test_environments import ENVIRONMENTS, listed, rules_by_environment

CONFIG = {
    "experiment": "roles",
    "delta": 1e-5,
    "threshold_rules": ["combined", "in_sample", "mahloujifar"],
    "allow_not_valid": True,
    "independent": "slots",
    "audits": {
        "head": {
            "canary": ["gradient", "crafted_input", "natural"],
            "dataset": "images",
            "sample_rate": 0.5,
            "target_epsilon": 10.0,
            "num_steps": 4,
            "num_runs": 8,
            "record_every": 2,
            "crafting_steps": 3,
        },
        "worst": {
            "canary": "worst_case",
            "sample_rate": 0.5,
            "noise_multiplier": 2.0,
            "num_steps": 4,
            "num_runs": 40,
        },
        "sets": {
            "canary": ["loss", "metagradient"],
            "adjacency": "add_remove",
            "dataset": "pixels",
            "model": "resnet9",
            "width": 2,
            "sample_rate": 0.5,
            "noise_multiplier": 0.0,
            "num_steps": 4,
            "num_slots": 4,
            "worlds": "coins",
            "num_runs": 1,
            "num_repeats": 2,
            "seed": 1,
            "pretraining": {"num_steps": 2, "batch_size": 8},
            "metagradient": {"num_metasteps": 2, "num_steps": 3, "batch_size": 6, "width": 2},
        },
    },
    "figures": {
        "steps": {"kind": "epsilon_by_step", "sweeps": ["head"]},
        "noise": {"kind": "epsilon_by_noise", "sweeps": ["worst"]},
        "runs": {"kind": "epsilon_by_runs", "sweeps": ["head"], "num_runs": [4, 8]},
        "accuracy": {"kind": "test_accuracy", "sweeps": ["head"]},
        "histograms": {"kind": "score_histograms", "sweeps": ["head"]},
        "sets": {"kind": "canary_sets", "sweeps": ["sets"]},
        "trade_off": {"kind": "trade_off", "sweeps": ["head"], "proven": True},
        "ratio": {
            "kind": "adjacency_ratio",
            "sample_rates": [0.5],
            "num_steps": [4, 8],
            "noise_multipliers": [2.0, 4.0],
        },
    },
}
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
    """A user's folder with a config and tiny images."""
    made = tmp_path_factory.mktemp("roles")
    write_encoders(made)
    images = {
        "source": "cifar10",
        "files": [str(cifar10(made))],
        "encoder": str(made / "vit"),
        "num_records": 40,
    }
    pixels = {**images, "num_test": 10}
    del pixels["encoder"]
    config = {**CONFIG, "datasets": {"images": images, "pixels": pixels}}
    (made / "roles.yaml").write_text(yaml.safe_dump(config))
    return made


def built(environment: str, folder: Path) -> Path:
    """The folder of an environment's programs, with the packages that its file lists."""
    place = folder / f"env-{environment}"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    packages = [
        f"{name}=={version}"
        for name, version in listed(environment).items()
        if name not in ("python", "pip")
    ]
    # Few of their modules are ever imported, so none is compiled in advance.
    install = [str(place / "bin/pip"), "install", "--quiet", "--no-compile"]
    printed_by([*install, *packages], folder)
    return place / "bin"


def snakemake(folder: Path, programs: Path, *options: str) -> str:
    """Runs Snakemake, whose jobs' `python` is the environment's."""
    command = [*SNAKEMAKE, "--cores", "2", "--snakefile", SNAKEFILE, *options]
    command += ["--configfile", "roles.yaml"]
    return printed_by(command, folder, programs=programs, HF_HUB_OFFLINE="1")


def test_every_environment_has_its_turn():
    assert {*TURNS, "costs", "snakemake"} == set(ENVIRONMENTS)


@pytest.mark.exhaustive
def test_each_role_runs_in_its_own_environment(folder):
    for environment, last in TURNS.items():
        snakemake(folder, built(environment, folder), "--until", *last)
        for rule in {*rules_by_environment()[environment]} - NOT_RUN - FIGURES:
            assert list(folder.glob(f"*/**/logs/{rule}*")), f"{rule} has not run"
    assert (folder / "results/roles/summary.tsv").exists()
    for figure in CONFIG["figures"]:
        assert (folder / f"results/roles/figures/{figure}.png").exists()


@pytest.mark.exhaustive
def test_costs_are_estimated_in_their_own_environment(folder):
    assert "core-hours" in snakemake(folder, built("costs", folder), "estimate_cost")


@pytest.mark.exhaustive
def test_snakemake_plans_in_its_own_environment(folder):
    programs = built("snakemake", folder)
    command = [str(programs / "python"), "-m", "snakemake", "--dry-run", "--cores", "1"]
    printed_by(
        [*command, "--snakefile", SNAKEFILE, "--configfile", "roles.yaml"],
        folder,
        programs=programs,
    )
