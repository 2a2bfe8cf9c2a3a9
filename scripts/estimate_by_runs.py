"""Turns the first runs of an audit's repeats into lower bounds on epsilon at the last step."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpcanary.estimation.table import estimates_table, first_runs, last_step
from dpcanary.files import read_arrays
from dpcanary.program import run
from dpcanary.stages import EstimationStage
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
    args = parser.parse_args(argv)
    header, arrays = read_arrays(args.scores)
    final = last_step(arrays)
    parts = [
        first_runs(final, num_runs, audit=header["audit"]) for num_runs in sorted({*args.num_runs})
    ]
    tables = [estimates_table(args.settings, header=header, arrays=part) for part in parts]
    write_table(args.output, pd.concat(tables))


if __name__ == "__main__":
    run(main)
