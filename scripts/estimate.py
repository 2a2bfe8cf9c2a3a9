"""Turns an audit's scores into lower bounds on epsilon, at every recorded step."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.estimation.settings import EstimationStage
from dpcanary.estimation.table import estimates_table
from dpcanary.program import parsed, run
from dpcanary.scoring.score_file import read_scores
from dpcanary.tables import write_table


def main(argv: Sequence[str]) -> None:
    """Writes one row per repeat, step, threshold rule and conversion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=EstimationStage.model_validate_json, required=True)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parsed(parser, argv)
    table = estimates_table(args.settings, read_scores(args.scores))
    write_table(args.output, table, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
