"""Estimated costs as a user gets them: the program's tables, and the rule by Snakemake."""

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from dpcanary.config import parse_experiment
from dpcanary.costs.jobs import Plan, all_jobs
from dpcanary.costs.measuring import Probe, Seconds
from dpcanary.costs.programs import Start
from dpcanary.costs.shapes import shapes_of
from dpcanary.costs.training import Training

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests/workflow/tiny.yaml"
DRAWN = {
    "experiment": "drawn",
    "delta": 1e-5,
    "audits": {
        "grid": {
            "canary": "worst_case",
            "sample_rate": 1.0,
            "noise_multiplier": [2.0, 3.0],
            "num_steps": 10,
            "num_runs": 40,
        }
    },
}


def program() -> ModuleType:
    path = ROOT / "scripts/estimate_cost.py"
    spec = importlib.util.spec_from_file_location("program_estimate_cost", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_second(
    probes: Collection[Probe], *, num_workers: int, on_progress: Callable[[int], object]
) -> dict[Probe, Seconds]:
    """As if what is done once took a second, and all that comes on top of it no time."""
    on_progress(len(probes))
    rest = {Start: (), Training: (0.0, 0.0)}  # the others have two units
    return {probe: (1.0, *rest.get(type(probe), (0.0,))) for probe in probes}


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
    of = parse_experiment(yaml.safe_load(TINY.read_text()))
    resolved = tmp_path / "experiment.json"
    resolved.write_text(of.to_json())
    module = program()
    monkeypatch.setattr("dpcanary.costs.report.measured", one_second)
    module.main(
        ["--experiment", str(resolved), "--results", str(tmp_path / "results"), "--cores", "4"]
    )
    printed = capsys.readouterr()
    rows = {line.split()[0]: line.split() for line in printed.out.splitlines() if line}
    assert {*of.sweeps, "(shared)", "total"} <= rows.keys()
    models = sum(audit.total_runs for audit in of.audits.values() if audit.canary.is_trained)
    assert rows["total"][1] == str(len(of.audits))
    assert rows["total"][4] == str(models)
    shards = sum(len(audit.shards) for audit in of.audits.values() if audit.canary.is_trained)
    started = rows["train_shard"]
    assert started[2] == started[3] == str(shards)
    assert started[6] == f"{2 * shards / 3600:.2g}"  # its start and its set-up
    assert "Not counted" in printed.out
    assert "probe" in printed.err


def test_jobs_are_those_that_snakemake_plans(tmp_path):
    config = yaml.safe_load(TINY.read_text())
    config["figures"]["by_runs"] = {"kind": "epsilon_by_runs", "sweeps": ["steps"], "num_runs": [4]}
    config["figures"]["accuracy"] = {"kind": "test_accuracy", "sweeps": ["perceptron"]}
    config["figures"]["ratio"] = {
        "kind": "adjacency_ratio",
        "sample_rates": [0.5, 1.0],
        "num_steps": [10],
        "noise_multipliers": [2.0, 3.0],
    }
    planned = re.findall(
        r"^(\w+) +(\d+)$", snakemake(tmp_path, config, "-n", "--quiet", "rules"), re.MULTILINE
    )
    of = parse_experiment(config)
    shapes = shapes_of(of, data=tmp_path, folder=None)
    jobs = all_jobs(Plan(of, shapes, scripts=ROOT / "scripts", device="cpu"))
    counts: Counter[str] = Counter()
    for each in jobs:
        counts[each.rule] += each.count
    assert counts == {rule: int(count) for rule, count in planned if rule not in ("all", "total")}


def test_the_rule_probes_and_prints(tmp_path):
    printed = snakemake(tmp_path, DRAWN, "estimate_cost")
    total = re.search(r"^total +2 +(\d+) +2 +- +- +(\S+) +", printed, re.MULTILINE)
    assert total is not None, printed
    assert int(total[1]) == 1 + 2 * 5 + 1  # the resolved config, five rules an audit, the summary
    assert 1 < 3600 * float(total[2]) < 300
    assert "with 2 cores" in printed
    assert "probe" in (tmp_path / "results/drawn/logs/estimate_cost.log").read_text()
    assert not (tmp_path / "results/drawn/shards").exists()
