"""What shuffled batches leak: the table of docs/pitfalls.md.

`proven` is a lower bound on epsilon of the worst case that is drawn, by its exact law: the draws
give a confidence interval that assumes nothing (`dpcanary.accounting.simulate_epsilon`). `claimed`
is accounted for Poisson samples, and `guaranteed` holds with shuffling. Nothing is trained.
"""

import argparse
from math import isfinite

from dpcanary.accounting import ShuffledMechanism, account_shuffled, simulate_epsilon
from dpcanary.adversaries.adversary_settings import DrawingStage, OtherRecords
from dpcanary.adversaries.drawing import Drawing
from dpcanary.adversaries.worst_case import draw_worst_case
from dpcanary.core.adjacency import ADJACENCIES, Adjacency

DELTA = 1e-5
# Batches in a pass, passes, and noise multipliers.
SETTINGS = [(50, 5, 0.7), (50, 5, 1.1), (50, 5, 2.0), (50, 5, 4.0), (200, 1, 0.5), (200, 1, 1.0)]


def drawn(
    mechanism: ShuffledMechanism, others: OtherRecords, *, runs: int, seed: int
) -> tuple[float, float]:
    """Lower and upper end of the 95 % intervals of epsilon."""
    stage = DrawingStage(
        function="dpcanary.adversaries.worst_case:draw_worst_case",
        observe="log_likelihood_ratio",
        adjacency=mechanism.adjacency,
        sample_rate=1.0,
        record_steps=(mechanism.num_steps,),
        seed=seed,
        batches_per_pass=mechanism.batches_per_pass,
        other_records=others,
        landscape=None,
        landscape_threshold=None,
    )
    ratios = draw_worst_case(Drawing(stage, mechanism.noise_multiplier, range(runs)))[:, 0]
    interval = simulate_epsilon(ratios[0::2], ratios[1::2], delta=DELTA)
    return interval.lower, interval.upper


def main() -> None:
    """Prints the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000_000, help="of both worlds together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(
        "| batches, passes, σ | adjacency | shown, others 0 | shown, others -C |"  # noqa: RUF001
        " claimed (Poisson) | guaranteed |\n|---|---|---|---|---|---|"
    )
    for batches, passes, sigma in SETTINGS:
        for adjacency in (Adjacency.SUBSTITUTE, Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE):
            mechanism = ShuffledMechanism(
                adjacency,
                batches_per_pass=batches,
                num_steps=batches * passes,
                noise_multiplier=sigma,
            )
            accounted = account_shuffled(mechanism, delta=DELTA)
            ends = [
                drawn(mechanism, others, runs=options.runs, seed=options.seed)
                for others in OtherRecords
            ]
            intervals = [
                f"{low:.2f}" + (f" (at most {high:.2f})" if isfinite(high) else "")
                for low, high in ends
            ]
            print(
                f"| {batches}, {passes}, {sigma:g} | {ADJACENCIES[adjacency]} |"
                f" {' | '.join(intervals)} | {accounted.claimed[adjacency]:.2f} |"
                f" {accounted.guaranteed[adjacency]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
