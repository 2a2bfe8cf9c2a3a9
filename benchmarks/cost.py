"""Compares estimated with true costs: probes an experiment, runs it, and prints the ratios.

Run as `python -m benchmarks.cost [--config config/demo.yaml] [--repeats 3]`. The true costs are the
time that each job had a core, the time that Snakemake took, and the disk space of the results, on a
machine that does nothing else. benchmarks/README.md says what is measured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

from dpcanary.costs.cost_report import probed_costs, timed_on, wall_seconds
from dpcanary.costs.jobs import JobList
from dpcanary.experiment.config_parsing import parse_experiment, read_config

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Cost:
    """What an experiment costs, estimated or true.

    Attributes:
        core_seconds: core-seconds of all jobs.
        wall_seconds: time from start to end.
        num_bytes: bytes of disk.
        by_rule: core-seconds by rule.
        probe_seconds: time that the estimate took; 0 for the truth.
        load: the system's load at the end, averaged over a minute.
    """

    core_seconds: float
    wall_seconds: float
    num_bytes: int
    by_rule: dict[str, float]
    probe_seconds: float = 0.0
    load: float = field(default_factory=lambda: os.getloadavg()[0])


def estimated(config: Path, cores: int) -> Cost:
    """The estimate, made as rule `estimate_cost` makes it."""
    start = perf_counter()
    experiment = parse_experiment(read_config(config))
    folder = os.environ.get("DPCANARY_DATA")
    device = timed_on(experiment.settings.device)
    listed = JobList(experiment, folder=Path(folder) if folder else None, device=device)
    costs = probed_costs(listed.table, num_workers=cores)
    seconds = 3600 * (costs["GPU-hours"] + costs["core-hours"])
    by_rule = seconds.groupby(costs["rule"]).sum().to_dict()
    wall, spent = wall_seconds(costs, cores), perf_counter() - start
    return Cost(seconds.sum(), wall, int(costs["disk"].sum()), by_rule, spent)


def true(config: Path, cores: int) -> Cost:
    """The truth: runs the experiment in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "snakemake", "--cores", str(cores), "--quiet", "all"]
        command += ["--snakefile", str(ROOT / "Snakefile"), "--directory", name]
        start = perf_counter()
        subprocess.run([*command, "--configfile", str(config.resolve())], check=True)
        wall, folder = perf_counter() - start, Path(name)
        by_rule = job_seconds(folder / ".snakemake/metadata")
        return Cost(sum(by_rule.values()), wall, disk_usage(folder / "results"), by_rule)


def job_seconds(metadata: Path) -> dict[str, float]:
    """How long the jobs of each rule took, by Snakemake's records, one for each file of a job."""
    records = (json.loads(path.read_text()) for path in metadata.rglob("*") if path.is_file())
    jobs = {(record["rule"], record["starttime"], record["endtime"]) for record in records}
    by_rule: dict[str, float] = defaultdict(float)
    for rule, start, end in jobs:
        by_rule[rule] += end - start
    return dict(by_rule)


def disk_usage(folder: Path) -> int:
    """Bytes of all files in a folder and its subfolders, in whole blocks."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sum(512 * path.stat().st_blocks for path in files)


def table(estimate: Cost, truth: Cost) -> str:
    """A table of estimate, truth and their ratios."""
    rows = [
        ("core-seconds", estimate.core_seconds, truth.core_seconds),
        ("wall seconds", estimate.wall_seconds, truth.wall_seconds),
        ("MB of disk", estimate.num_bytes / 1e6, truth.num_bytes / 1e6),
    ]
    longest = sorted(truth.by_rule, key=lambda rule: -truth.by_rule[rule])
    rows += [(rule, estimate.by_rule.get(rule, 0.0), truth.by_rule[rule]) for rule in longest]
    lines = [f"{'':<26}{'estimate':>10}{'truth':>10}{'ratio':>8}"]
    lines += [
        f"{name:<26}{guess:>10.1f}{fact:>10.1f}{guess / max(fact, 1e-9):>8.2f}"
        for name, guess, fact in rows
    ]
    return "\n".join(
        [
            *lines,
            f"probes: {estimate.probe_seconds:.0f} s; load: {estimate.load:.1f} after them,"
            f" {truth.load:.1f} after the run",
        ]
    )


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.add_argument("--config", type=Path, default=ROOT / "config/demo.yaml")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1, help="estimates and runs, alternating")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(argv)
    for _ in range(options.repeats):
        estimate = estimated(options.config, options.cores)
        truth = true(options.config, options.cores)
        both = {"estimate": asdict(estimate), "truth": asdict(truth)}
        print(json.dumps(both) if options.json else table(estimate, truth), flush=True)


if __name__ == "__main__":
    main()
