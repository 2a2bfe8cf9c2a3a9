"""Checks an audit's shards, and turns their observations into scores."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.observations import shard_path
from dpcanary.program import parsed, run
from dpcanary.scoring.pooling import pool_scores
from dpcanary.scoring.score_file import write_scores
from dpcanary.scoring.settings import ScoringStage

_NAMES = ("audit", "canary", "score")


def main(argv: Sequence[str]) -> None:
    """Writes the scores of all runs and slots, at every recorded step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--names", nargs=3, required=True, metavar=tuple(map(str.upper, _NAMES)), help="for figures"
    )
    parser.add_argument("--settings", type=ScoringStage.model_validate_json, required=True)
    parser.add_argument("--canaries", type=Path, help="canary file, if models are trained")
    parser.add_argument("--shards", type=Path, required=True, help="folder of the shards")
    parser.add_argument(
        "--num-shards", type=int, required=True, help="further files are out of date"
    )
    parser.add_argument("--output", type=Path, required=True)
    args = parsed(parser, argv, read_later=["shards"])
    scores = pool_scores(
        [shard_path(args.shards, index) for index in range(args.num_shards)],
        args.settings,
        canaries=args.canaries,
        names=dict(zip(_NAMES, args.names, strict=True)),
        origin=next(iter(args.job.inputs.get("shards", ())), None),
    )
    write_scores(args.output, scores, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
