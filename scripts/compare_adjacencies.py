"""Accounts a grid of mechanisms under substitute and under add/remove adjacency."""

from collections.abc import Sequence

from dpcanary.accounting.accounting_settings import ComparisonStage
from dpcanary.accounting.comparison import compare_adjacencies
from dpcanary.core.program_messages import parsed, run, stage_parser
from dpcanary.core.tsv_tables import write_table


def main(argv: Sequence[str]) -> None:
    """Writes one row per sample rate, number of steps and noise multiplier."""
    args = parsed(stage_parser(__doc__, ComparisonStage), argv)
    write_table(args.output, compare_adjacencies(**dict(args.settings)), origin=args.job.origin)


if __name__ == "__main__":
    run(main)
