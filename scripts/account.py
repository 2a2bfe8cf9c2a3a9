"""Accounts an audit's mechanism: upper bounds at every recorded step, and its privacy profile."""

from collections.abc import Sequence

from dpcanary.accounting.accounted_overview import profile, upper_bounds
from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.core.program_messages import parsed, run, stage_parser
from dpcanary.core.sealed_tables import read_number
from dpcanary.core.tsv_tables import write_table


def main(argv: Sequence[str]) -> None:
    """Writes both tables."""
    parser = stage_parser(__doc__, AccountingStage, inputs=["noise"], outputs=["TABLE", "PROFILE"])
    args = parsed(parser, argv)
    noise_multiplier = read_number(args.noise, "noise_multiplier")
    bounds = upper_bounds(args.settings, noise_multiplier=noise_multiplier)
    points = profile(args.settings, noise_multiplier=noise_multiplier)
    table_path, profile_path = args.output
    write_table(table_path, bounds, origin=args.job.origin)
    write_table(profile_path, points, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
