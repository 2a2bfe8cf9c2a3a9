"""What it costs to stop when you want: a table of docs/comparison.md.

Run as `python -m benchmarks.anytime`; about 15 minutes. `--audits` sets the number of audits of a
cell.
"""

import argparse

import numpy as np

from dpcanary.estimation.anytime import EProcess, lines_of_family
from dpcanary.estimation.families import GDP
from dpcanary.estimation.null_distributions.null_tables import calibrated_bound
from dpcanary.estimation.null_distributions.statistics import observed_statistics, scan_terms

MUS = (1.0, 3.0, 6.0)
NUM_RUNS = (200, 1_000, 5_000)
# Looks at 50, 100, 200, ... runs, as far as they go, and at the last.
LOOKS = (50, 100, 200, 500, 1_000, 2_000, 5_000)
SIGNIFICANCE = 0.05
Scores = np.ndarray


def calibrated(world0: Scores, world1: Scores, looks: tuple[tuple[int, int], ...]) -> float:
    """The bound of `combined` at the last of some looks."""
    terms = scan_terms(family=GDP, sizes=looks[-1], significance=SIGNIFICANCE)
    return calibrated_bound(
        family=GDP,
        looks=looks,
        look=len(looks) - 1,
        significance=SIGNIFICANCE,
        rule="combined",
        statistics=observed_statistics(world0, world1, terms),
    )


def anytime(world0: Scores, world1: Scores) -> float:
    """The bound of `anytime`."""
    process = EProcess(lines_of_family(GDP), significance=SIGNIFICANCE)
    process.add(world0, world1)
    return max(process.bound, 0.0)


def row(mu: float, num_runs: int, num_audits: int) -> str:
    """A line of the table: means of mu_lower / mu, and the largest Monte-Carlo error of them."""
    half = num_runs // 2
    looks = tuple((look // 2, look // 2) for look in LOOKS if look <= num_runs)
    rng = np.random.default_rng([9, int(mu), num_runs])
    rows = []
    for _ in range(num_audits):
        pair = rng.normal(mu, 1, half), rng.normal(0, 1, half)
        rows.append((calibrated(*pair, ((half, half),)), calibrated(*pair, looks), anytime(*pair)))
    ratios = np.array(rows) / mu
    error = ratios.std(axis=0).max() / num_audits**0.5
    cells = (f"{mu:g}", f"{num_runs:,}", *(f"{mean:.3f}" for mean in ratios.mean(axis=0)))
    return f"| {' | '.join(cells)} | {error:.3f} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=200)
    num_audits = parser.parse_args().audits
    print("| mu | runs | fixed number | at looks | anytime | Monte-Carlo error |")
    print("|---" * 6 + "|")
    for mu in MUS:
        for num_runs in NUM_RUNS:
            print(row(mu, num_runs, num_audits), flush=True)


if __name__ == "__main__":
    main()
