"""Turns the first runs of an audit's repeats into lower bounds on epsilon at the last step."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.estimation.settings import EstimationStage
from dpcanary.estimation.table import estimates_by_runs
from dpcanary.program import parsed, run
from dpcanary.scoring.score_file import read_scores
from dpcanary.tables import write_table


def main(argv: Sequence[str]) -> None:
    """Writes one row per number of runs, repeat, threshold rule and conversion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=EstimationStage.model_validate_json, required=True)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument(
        "--num-runs", type=int, nargs="+", required=True, help="runs of both worlds, per repeat"
    )
    parser.add_argument("--output", type=Path, required=True)
    args = parsed(parser, argv)
    table = estimates_by_runs(args.settings, read_scores(args.scores), args.num_runs)
    write_table(args.output, table, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
