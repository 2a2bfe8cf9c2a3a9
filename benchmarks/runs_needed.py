"""How many runs an audit needs: the table of docs/configs.md.

Run as `python -m benchmarks.runs_needed`; about a minute.
"""

import argparse

from dpcanary import runs_needed
from dpcanary.accounting import gdp_epsilon, gdp_mu
from dpcanary.estimation import expected_bound

DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0, 10.0)
NUM_RUNS = (100, 250, 1_000, 2_500, 10_000)
POWERS = (0.8, 0.95)


def row(epsilon: float) -> str:
    """A line of the table for full batches of a given epsilon under substitute adjacency."""
    mu = gdp_mu(epsilon=epsilon, delta=DELTA)
    add_remove = gdp_epsilon(mu=mu / 2, delta=DELTA)
    needed = [
        runs_needed(mechanism=mu, exceed=add_remove, delta=DELTA, power=power) for power in POWERS
    ]
    bounds = [expected_bound(mechanism=mu, num_runs=runs, delta=DELTA).mean for runs in NUM_RUNS]
    cells = [
        f"{epsilon:g}",
        f"{add_remove:.2f}",
        " / ".join(f"{runs:,}" for runs in needed),
        *(f"{bound:.2f}" for bound in bounds),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    powers = " / ".join(f"{100 * power:g} %" for power in POWERS)
    heads = [
        "epsilon, substitute",
        "add/remove",
        f"runs to exceed it in {powers} of audits",
        *(f"{runs:,} runs" for runs in NUM_RUNS),
    ]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for epsilon in EPSILONS:
        print(row(epsilon), flush=True)


if __name__ == "__main__":
    main()
