"""Finds the largest epsilon that can be shown without assumptions from as many runs."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.core.program_messages import parsed, run, stage_parser
from dpcanary.core.tsv_tables import write_table
from dpcanary.estimation.estimation_settings import EstimationStage
from dpcanary.estimation.table import ceilings_table
from dpcanary.scoring.score_file import read_scores


def main(argv: Sequence[str]) -> None:
    """Writes a row for each audit of a figure."""
    parser = stage_parser(__doc__, EstimationStage)
    parser.add_argument("--scores", type=Path, nargs="+", required=True)
    args = parsed(parser, argv)
    scores = [read_scores(path) for path in args.scores]
    table = ceilings_table(args.settings, scores)
    write_table(args.output, table, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
