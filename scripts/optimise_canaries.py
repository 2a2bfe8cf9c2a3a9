"""Optimises canaries through whole trainings; audits of different trainings share them."""

from collections.abc import Sequence

from dpcanary.adversaries.adversary_settings import MetagradientStage
from dpcanary.adversaries.crafting import optimise_canaries
from dpcanary.core.devices import chosen_device
from dpcanary.core.program_messages import parsed, progress, run, stage_parser
from dpcanary.data.canaries import write_canaries
from dpcanary.data.records import read_split


def main(argv: Sequence[str]) -> None:
    """Reads the data and writes a canary file."""
    parser = stage_parser(__doc__, MetagradientStage, inputs=["data"], device=True)
    args = parsed(parser, argv)
    optimised = optimise_canaries(
        args.settings,
        private=read_split(args.data).private,
        device=chosen_device(args.device),
        progress=progress,
    )
    write_canaries(args.output, optimised, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
