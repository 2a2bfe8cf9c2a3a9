"""How long an audit waits for Python: the workflow with its job server, and without.

Run as `python -m benchmarks.job_starts [--repeats 3] [--cores 2]`. Each repeat runs a user's first
audit (`dpcanary audit --features digits --quick`) and the demo, with the server and without, in a
new folder; without, every job starts a Python of its own. Prints the median of the seconds that a
user waits, and of the ratios of the pairs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.planted import copied
from dpcanary.core.printing import print_table

FIRST_AUDIT = [
    *("audit", "--features", "digits", "--quick", "--num-steps", "100"),
    *("--target-epsilon", "10", "--delta", "1e-5"),
]
WORK = {"a first audit": FIRST_AUDIT, "the demo": ["run", "config/demo.yaml"]}
# What starts the server, and what never does.
STARTS, STARTS_NEVER = 'if not hasattr(os, "pidfd_open"):', "if True:"


def seconds_of(arguments: list[str], project: Path, cores: int) -> float:
    """Seconds from the start of a command to its end, without results to begin with."""
    with tempfile.TemporaryDirectory(prefix="dpcanary-starts-") as folder:
        (Path(folder) / "config").symlink_to(project / "config")
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "dpcanary", *arguments, "--cores", str(cores)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(project)},
            check=True,
            capture_output=True,
        )
        return time.perf_counter() - start


def main() -> int:
    """Times pairs, and prints their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="dpcanary-starts-") as folder:
        with_server, without = (copied(Path(folder) / name) for name in ("with", "without"))
        module = without / "dpcanary/workflow/job_python.py"
        text = module.read_text(encoding="utf-8")
        if text.count(STARTS) != 1:
            sys.exit(f"error: {module.name} has no {STARTS!r}, by which the server starts")
        module.write_text(text.replace(STARTS, STARTS_NEVER), encoding="utf-8")
        for name, command in WORK.items():
            pairs = [
                tuple(
                    seconds_of(command, project, arguments.cores)
                    for project in (with_server, without)
                )
                for _ in range(arguments.repeats)
            ]
            served, alone = (median(times) for times in zip(*pairs, strict=True))
            ratio = median(later / sooner for sooner, later in pairs)
            rows.append((name, f"{served:.1f}", f"{alone:.1f}", f"{ratio:.2f}"))
    print_table(["seconds of", "with the server", "without", "ratio"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
