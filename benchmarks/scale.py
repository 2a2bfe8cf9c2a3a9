"""Files, jobs, bytes and time from a thousand to ten million models.

    python -m benchmarks.scale [--models 1000 ...] [--drawn 1000 ...] [--runs-per-shard 1000]

Plans an audit of gradient canaries with so many models for a cluster, and runs one of a process,
whose runs cost almost nothing, from start to end: this measures the workflow itself, the scores and
the bounds. Memory is that of the largest process, looked at four times in a second.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from dpcanary.core.installation import SNAKEFILE
from dpcanary.core.printing import print_table

CLUSTER = Path(__file__).parents[1] / "profiles/slurm"
SHARED = {"sample_rate": 0.25, "num_steps": 500, "target_epsilon": 10.0}


def config(num_runs: int, runs_per_shard: int, *, is_drawn: bool) -> dict[str, Any]:
    """An experiment of one audit."""
    sizes = {"num_runs": num_runs, "runs_per_shard": runs_per_shard}
    canary = {"canary": "worst_case"} if is_drawn else {"canary": "gradient", "dataset": "digits"}
    datasets = {"digits": {"source": "digits", "num_records": 500}}
    return {
        "experiment": "scale",
        "delta": 1e-5,
        "datasets": {} if is_drawn else datasets,
        "audits": {"one": {**SHARED, **canary, **sizes}},
    }


def ran(command: list[str], folder: Path) -> tuple[str, float, float]:
    """Standard output, seconds by the clock, and bytes of memory of the largest process."""
    start, largest = time.monotonic(), 0
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        root = psutil.Process(running.pid)
        while running.poll() is None:
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    largest = max(largest, process.memory_info().rss)
            time.sleep(0.25)
        assert running.stdout is not None
        printed = running.stdout.read()
    if running.returncode:
        raise RuntimeError(printed[-2_000:])
    return printed, time.monotonic() - start, largest


def planned(num_runs: int, runs_per_shard: int, folder: Path) -> list[str]:
    """What a dry run of the trained audit says and takes, as cells of a row."""
    (folder / "scale.yaml").write_text(
        yaml.safe_dump(config(num_runs, runs_per_shard, is_drawn=False))
    )
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE), "--dry-run"]
    command += ["--quiet", "rules", "--profile", str(CLUSTER), "--configfile", "scale.yaml"]
    # The profile's own method asks conda, which need not be here.
    command += ["--software-deployment-method", "env-modules"]
    printed, seconds, memory = ran(command, folder)
    counts = dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)
    return [f"{num_runs:,}", counts["total"], f"{seconds:.1f}", f"{memory / 1e6:.0f}"]


def drawn(num_runs: int, runs_per_shard: int, folder: Path) -> list[str]:
    """What the whole audit of a process takes, as cells of a row."""
    (folder / "scale.yaml").write_text(
        yaml.safe_dump(config(num_runs, runs_per_shard, is_drawn=True))
    )
    command = [sys.executable, "-m", "dpcanary", "run", "scale.yaml", "--cores", "2"]
    _, seconds, memory = ran(command, folder)
    results = folder / "results/scale"
    files = [path for path in results.rglob("*") if path.is_file()]
    return [
        f"{num_runs:,}",
        f"{len([*(results / 'shards').rglob('*.npz')]):,}",
        f"{len(files):,}",
        f"{sum(path.stat().st_size for path in files) / 1e6:.1f}",
        f"{seconds:.0f}",
        f"{memory / 1e6:.0f}",
    ]


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = [10**power for power in range(3, 8)]
    parser.add_argument("--models", type=int, nargs="*", default=sizes)
    parser.add_argument("--drawn", type=int, nargs="*", default=sizes[:-1])
    parser.add_argument("--runs-per-shard", type=int, default=1_000)
    arguments = parser.parse_args()
    os.environ.pop("DPCANARY_CACHE", None)
    for title, sized, measure in (
        (["models", "jobs", "s to plan", "MB"], arguments.models, planned),
        (
            ["runs", "shards", "files", "MB of disk", "s", "MB of memory"],
            arguments.drawn,
            drawn,
        ),
    ):
        rows = []
        for size in sized:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["DPCANARY_CACHE"] = str(Path(folder) / "cache")
                rows.append(measure(size, arguments.runs_per_shard, Path(folder)))
            print(*rows[-1], sep="\t", file=sys.stderr, flush=True)
        print_table(title, rows)
        print()


if __name__ == "__main__":
    main()
