"""Joins settings, estimates and accounted bounds of all audits into one table."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpcanary.files import read_json
from dpcanary.program import run
from dpcanary.summary import summary_rows
from dpcanary.tables import read_table, write_table


def main(argv: Sequence[str]) -> None:
    """Writes the summary; the audits are the files' names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", type=Path, required=True)
    parser.add_argument("--estimates", type=Path, nargs="+", required=True)
    parser.add_argument("--accounting", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    experiment = read_json(args.experiment)
    rows = [
        summary_rows(
            experiment,
            estimates.stem,
            estimates=read_table(estimates),
            accounting=read_table(accounting),
        )
        for estimates, accounting in zip(args.estimates, args.accounting, strict=True)
    ]
    write_table(args.output, pd.concat(rows))


if __name__ == "__main__":
    run(main)
