"""Finds an audit's noise multiplier: as given, or calibrated to an epsilon."""

from collections.abc import Sequence

from dpcanary.accounting.audit_noise import NoiseStage, noise_of
from dpcanary.core.program_messages import parsed, run, stage_parser
from dpcanary.core.sealed_tables import write_sealed_object


def main(argv: Sequence[str]) -> None:
    """Writes the noise multiplier as JSON."""
    parser = stage_parser(__doc__, NoiseStage)
    args = parsed(parser, argv)
    content = {"noise_multiplier": noise_of(args.settings), "origin": args.job.origin}
    write_sealed_object(args.output, content)


if __name__ == "__main__":
    run(main)
