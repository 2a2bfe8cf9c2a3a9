"""Accounts a grid of mechanisms under substitute and under add/remove adjacency."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.accounting.comparison import compare_adjacencies
from dpcanary.program import parsed, run
from dpcanary.tables import write_table


def main(argv: Sequence[str]) -> None:
    """Writes one row per sample rate, number of steps and noise multiplier."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delta", type=float, required=True)
    parser.add_argument("--sample-rates", type=float, nargs="+", required=True)
    parser.add_argument("--noise-multipliers", type=float, nargs="+", required=True)
    parser.add_argument("--num-steps", type=int, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parsed(parser, argv)
    table = compare_adjacencies(
        sample_rates=args.sample_rates,
        noise_multipliers=args.noise_multipliers,
        num_steps=args.num_steps,
        delta=args.delta,
    )
    write_table(args.output, table, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
