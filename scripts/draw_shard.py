"""Draws the observations of one shard of an audit that trains no model."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.adversaries.drawing import Drawing, draw_shard
from dpcanary.adversaries.settings import DrawingStage
from dpcanary.files import read_number
from dpcanary.observations import write_shard
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Draws runs first, ..., first + num_runs - 1 and writes the shard file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=DrawingStage.model_validate_json, required=True)
    parser.add_argument("--noise", type=Path, required=True)
    parser.add_argument("--first-run", type=int, required=True)
    parser.add_argument("--num-runs", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parsed(parser, argv)
    drawing = Drawing(
        stage=args.settings,
        noise_multiplier=read_number(args.noise, "noise_multiplier"),
        runs=range(args.first_run, args.first_run + args.num_runs),
    )
    write_shard(args.output, draw_shard(drawing), origin=args.job.origin)


if __name__ == "__main__":
    run(main)
