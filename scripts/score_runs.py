"""Checks an audit's shards, and turns their observations into scores."""

from collections.abc import Sequence

from dpcanary.core.program_messages import parsed, run, stage_parser
from dpcanary.data.observations import shard_path
from dpcanary.scoring.pooling import pool_scores
from dpcanary.scoring.score_file import write_scores
from dpcanary.scoring.scoring_settings import ScoringStage

_NAMES = ("audit", "canary", "score")


def main(argv: Sequence[str]) -> None:
    """Writes the scores of all runs and slots, at every recorded step."""
    parser = stage_parser(__doc__, ScoringStage, inputs=["shards"], optional=["canaries"])
    parser.add_argument("--names", nargs=3, required=True, metavar=_NAMES, help="for figures")
    parser.add_argument(
        "--num-shards", type=int, required=True, help="further files are out of date"
    )
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
