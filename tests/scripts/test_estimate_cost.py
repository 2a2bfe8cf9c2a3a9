"""Estimated costs as a user gets them: from the program, and from Snakemake's rule."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import yaml

from dpcanary.costs.jobs import JobList
from dpcanary.costs.probes import Probe, Seconds
from dpcanary.errors import InputError
from dpcanary.settings.parsing import parse_experiment, read_config
from dpcanary.training.settings import TrainingStage

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests/workflow/tiny.yaml"
SMALL = {
    "experiment": "small",
    "delta": 1e-5,
    "datasets": {"digits": {"source": "digits", "num_records": 100}},
    "audits": {
        "grid": {
            "canary": ["worst_case", "gradient"], "dataset": "digits", "sample_rate": 1.0,
            "noise_multiplier": 2.0, "num_steps": 10, "num_runs": 40,
        }
    },
}  # fmt: skip


def run_program(*argv: str) -> None:
    run_path(str(ROOT / "scripts/estimate_cost.py"))["main"](argv)


def one_second(
    probes: Collection[Probe], *, num_workers: int, on_progress: Callable[[int], object]
) -> dict[Probe, Seconds]:
    """As if the first unit of each probe took a second, and the others no time."""
    on_progress(len(probes))
    trains = {probe: isinstance(probe.stage, TrainingStage) for probe in probes}
    return {probe: (1.0, 0.0, 0.0) if trains[probe] else (1.0, 0.0) for probe in probes}


def snakemake(folder: Path, config: Any, *options: str) -> str:
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *options]
    command += ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command, "--configfile", str(folder / "config.yaml")],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_program_prints_every_sweep_and_the_total(tmp_path, monkeypatch, capsys):
    of = parse_experiment(read_config(TINY))
    resolved = tmp_path / "experiment.json"
    resolved.write_text(of.to_json())
    monkeypatch.setattr("dpcanary.costs.report.measured", one_second)
    run_program("--experiment", str(resolved), "--cores", "4")
    printed = capsys.readouterr()
    rows = {line.split()[0]: line.split() for line in printed.out.splitlines() if line}
    assert {*of.sweeps, "(shared)", "total"} <= rows.keys()
    trained = [audit for audit in of.audits.values() if audit.is_trained]
    assert rows["total"][1] == str(len(of.audits))
    assert rows["total"][3] == f"{sum(audit.total_runs for audit in trained):,}"
    shards = sum(len(audit.shards) for audit in trained)
    started = rows["train_shard"]
    assert started[2] == str(shards)
    assert started[5] == "0"
    listed = JobList(of, folder=None, device="cpu").table
    start = listed[listed["rule"] == "train_shard"]["seconds"].sum()
    assert start >= shards
    assert started[6] == f"{(start + shards) / 3600:.2g}"  # its start and its set-up
    assert "with 4 cores" in printed.out
    assert "Not counted" in printed.out
    assert "probe" in printed.err


def test_a_config_that_is_not_resolved_is_named():
    with pytest.raises(InputError, match="is not a resolved config; delete it and run again"):
        run_program("--experiment", str(TINY))


def test_jobs_are_those_that_snakemake_plans(tmp_path):
    config = read_config(TINY)
    slots = {"canary": ["gradient", "natural"], "num_slots": 3, "runs_per_shard": 15}
    config["audits"]["slots"] = config["audits"]["full_batch"] | slots
    config["figures"] |= {
        "by_runs": {"kind": "epsilon_by_runs", "sweeps": ["steps"], "num_runs": [4]},
        "proven": {"kind": "trade_off", "sweeps": ["steps"], "proven": True},
        "accuracy": {"kind": "test_accuracy", "sweeps": ["perceptron"]},
        "by_rate": {
            "kind": "epsilon_by_setting", "sweeps": ["full_batch", "slots"],
            "setting": "learning_rate",
        },
        "ratio": {
            "kind": "adjacency_ratio", "sample_rates": [0.5, 1.0], "num_steps": [10],
            "noise_multipliers": [2.0, 3.0],
        },
    }  # fmt: skip
    planned = re.findall(
        r"^(\w+) +(\d+)$", snakemake(tmp_path, config, "-n", "--quiet", "rules"), re.MULTILINE
    )
    listed = JobList(parse_experiment(config), folder=None, device="cpu").table
    counts = listed.groupby("rule")["jobs"].sum().to_dict()
    assert counts == {rule: int(count) for rule, count in planned if rule not in ("all", "total")}


@pytest.mark.long
def test_the_rule_probes_and_prints(tmp_path):
    printed = snakemake(tmp_path, SMALL, "estimate_cost")
    total = re.search(r"^total +2 +(\d+) +40 +400 +0 +(\S+) +", printed, re.MULTILINE)
    assert total is not None, printed
    jobs = 4 + 5 + 6  # config, dataset, reference and summary; five rules an audit, and a canary
    assert int(total[1]) == jobs
    assert 1 < 3600 * float(total[2]) < 300
    assert "with 2 cores" in printed
    log = (tmp_path / "results/small/logs/estimate_cost.log").read_text()
    assert re.search(r"100%.* 3\.00/3\.00 .*probe", log), log
    assert not (tmp_path / "results/small/shards").exists()
