"""Optimises canaries through whole trainings; audits of different trainings share them."""

from collections.abc import Sequence

from dpcanary.adversaries.metagradient import optimised_canaries
from dpcanary.adversaries.settings import MetagradientStage
from dpcanary.canaries import write_canaries
from dpcanary.devices import chosen_device
from dpcanary.program import parsed, progress, run, stage_parser
from dpcanary.records import read_split


def main(argv: Sequence[str]) -> None:
    """Reads the data and writes a canary file."""
    parser = stage_parser(__doc__, MetagradientStage, inputs=["data"], device=True)
    args = parsed(parser, argv)
    found = optimised_canaries(
        args.settings,
        private=read_split(args.data).private,
        device=chosen_device(args.device),
        progress=progress,
    )
    write_canaries(args.output, found, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
