"""Draws the observations of one shard of an audit that trains no model."""

from collections.abc import Sequence

from dpcanary.adversaries.adversary_settings import DrawingStage
from dpcanary.adversaries.drawing import Drawing, draw_shard
from dpcanary.core.program_messages import parsed, run, stage_parser
from dpcanary.core.sealed_tables import read_number
from dpcanary.data.observations import write_shard


def main(argv: Sequence[str]) -> None:
    """Draws the runs of a shard and writes the shard file."""
    parser = stage_parser(__doc__, DrawingStage, inputs=["noise"])
    parser.add_argument("--runs", type=int, nargs=2, required=True, metavar=("FIRST", "STOP"))
    args = parsed(parser, argv)
    drawing = Drawing(
        stage=args.settings,
        noise_multiplier=read_number(args.noise, "noise_multiplier"),
        runs=range(*args.runs),
    )
    write_shard(args.output, draw_shard(drawing), origin=args.job.origin)


if __name__ == "__main__":
    run(main)
