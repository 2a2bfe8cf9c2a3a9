"""Seconds to turn scores into a bound on epsilon, compared with a plain loop over thresholds.

Run as `python -m benchmarks.estimation`. benchmarks/README.md says what is measured.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

from dpcanary import estimate_epsilon
from dpcanary.estimation import ThresholdRule
from dpcanary.estimation.error_rates import (
    clopper_pearson_upper_table,
    compute_local_level,
    simultaneous_local_level,
)
from dpcanary.estimation.null_distributions.null_tables import null_table
from dpcanary.estimation.null_distributions.statistics import scan_terms

PER_WORLD = 25_000
LEVEL_SIZES = (1_250, 25_000)
LEVEL = 0.025
# Worlds whose sizes differ too much for the package's tables.
OFF_TABLE_SIZES = ((1_250, 1_750), (25_000, 35_000))
LOOP_THRESHOLDS = 500
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Timing:
    """Median seconds of one task.

    Attributes:
        task: what was timed.
        seconds: the median.
        note: what is special about the measurement, if anything.
    """

    task: str
    seconds: float
    note: str = ""


def seconds(task: Callable[[], object], repeats: int, prepare: Callable[[], object]) -> float:
    """Median seconds of a task. `prepare` is called before each repeat and is not timed."""
    times = []
    for _ in range(repeats):
        prepare()
        started = perf_counter()
        task()
        times.append(perf_counter() - started)
    return median(times)


def forget() -> None:
    """Empties the caches of all tables."""
    for cached in (clopper_pearson_upper_table, scan_terms, null_table):
        cached.cache_clear()
    simultaneous_local_level.cache_clear()


def loop_over_thresholds(world0: Scores, world1: Scores, thresholds: Scores) -> float:
    """The largest mu over some thresholds, each counted and bounded by itself."""
    best = 0.0
    for threshold in thresholds:
        false_positives = int(np.sum(world1 >= threshold))
        false_negatives = int(np.sum(world0 < threshold))
        bounds = [
            1.0 if errors == trials else beta.ppf(1.0 - LEVEL, errors + 1, trials - errors)
            for errors, trials in ((false_positives, len(world1)), (false_negatives, len(world0)))
        ]
        best = max(best, norm.isf(bounds[0]) + norm.isf(bounds[1]))
    return best


def measure(repeats: int) -> list[Timing]:
    """Times every task, one after the other."""
    rng = np.random.default_rng(0)
    world0, world1 = rng.normal(2.0, 1.0, PER_WORLD), rng.normal(0.0, 1.0, PER_WORLD)
    timings = []

    def add(name: str, time: float, note: str = "") -> None:
        print(f"{name}: {time:.4g} s", file=sys.stderr, flush=True)
        timings.append(Timing(name, time, note))

    for rule in ThresholdRule:

        def estimate(rule: ThresholdRule = rule) -> object:
            return estimate_epsilon(
                world0_scores=world0,
                world1_scores=world1,
                delta=1e-5,
                threshold_rule=rule,
                threshold=1.0 if rule is ThresholdRule.FIXED else None,
            )

        add(f"{rule}, cold tables", seconds(estimate, repeats, forget))
        add(f"{rule}, warm tables", seconds(estimate, repeats, lambda: None))
    thresholds = rng.choice(world0, LOOP_THRESHOLDS, replace=False)
    add(
        "loop over all thresholds",
        seconds(lambda: loop_over_thresholds(world0, world1, thresholds), 3, lambda: None)
        * (PER_WORLD / LOOP_THRESHOLDS),
        f"timed at {LOOP_THRESHOLDS} of {PER_WORLD} thresholds and scaled up",
    )
    for n0, n1 in OFF_TABLE_SIZES:
        with TemporaryDirectory() as folder:
            os.environ["DPCANARY_CACHE"] = folder

            def first_use(n0: int = n0, n1: int = n1) -> object:
                return estimate_epsilon(
                    world0_scores=rng.normal(2.0, 1.0, n0),
                    world1_scores=rng.normal(0.0, 1.0, n1),
                    delta=1e-5,
                )

            add(f"combined, {n0} + {n1} scores, first use", seconds(first_use, 1, forget))
            add(f"combined, {n0} + {n1} scores, from disk", seconds(first_use, 3, forget))
    for size in LEVEL_SIZES:

        def level(size: int = size) -> object:
            return compute_local_level(num_scores=size, level=LEVEL)

        add(f"local level of {size} scores, computed", seconds(level, 3, lambda: None))
    return timings


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimation", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repeats", type=int, default=7, help="timings of each estimate")
    options = parser.parse_args(argv)
    timings = measure(options.repeats)
    if options.json:
        print(json.dumps([asdict(timing) for timing in timings], indent=2))
        return
    print(f"{PER_WORLD} scores per world; median seconds")
    for timing in timings:
        print(f"{timing.task:<42}{timing.seconds:>12.4g}  {timing.note}")


if __name__ == "__main__":
    main()
