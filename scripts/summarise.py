"""Joins settings, estimates and accounted bounds of audits into one table."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpcanary.files import read_json
from dpcanary.program import run
from dpcanary.summary import summary_rows
from dpcanary.tables import read_table, write_table


def main(argv: Sequence[str]) -> None:
    """Writes the summary of some sweeps' audits, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", type=Path, required=True, help="the resolved config")
    parser.add_argument("--sweeps", nargs="+", help="by default all")
    for stage in ("estimates", "accounting"):
        parser.add_argument(f"--{stage}", type=Path, required=True, help="folder of <audit>.tsv")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    experiment = read_json(args.experiment)
    rows = [
        summary_rows(
            experiment,
            audit,
            estimates=read_table(args.estimates / f"{audit}.tsv"),
            accounting=read_table(args.accounting / f"{audit}.tsv"),
        )
        for sweep in args.sweeps or experiment["sweeps"]
        for audit in experiment["sweeps"][sweep]
    ]
    write_table(args.output, pd.concat(rows))


if __name__ == "__main__":
    run(main)
