"""Joins settings, estimates and accounted bounds of audits into one table."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpcanary.core.files import read_json
from dpcanary.core.program_messages import parsed, run
from dpcanary.core.provenance import as_json, check_origin, origin_of
from dpcanary.core.tsv_tables import read_table, write_table
from dpcanary.experiment.summary import summary_rows

_TABLES = ("estimates", "accounting")


def main(argv: Sequence[str]) -> None:
    """Writes the summary of some sweeps' audits, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", type=Path, required=True, help="the resolved config")
    parser.add_argument("--sweeps", nargs="+", help="by default all")
    for name in _TABLES:
        parser.add_argument(f"--{name}", type=Path, required=True, help="folder of <audit>.tsv")
    parser.add_argument("--output", type=Path, required=True)
    args = parsed(parser, argv, read_later=[*_TABLES, "experiment"])
    experiment = read_json(args.experiment)
    for origin in args.job.inputs.get("experiment", ()):
        config_origin = origin_of("experiment", settings=as_json(experiment), inputs={})
        check_origin(args.experiment, config_origin, origin)
    sweeps = args.sweeps or experiment["sweeps"]
    audits = [audit for sweep in sweeps for audit in experiment["sweeps"][sweep]]
    paths = {name: [getattr(args, name) / f"{audit}.tsv" for audit in audits] for name in _TABLES}
    for name in paths:
        if name in args.job.inputs:
            args.job.check(name, paths[name])
    rows = [
        summary_rows(
            experiment, audit, estimates=read_table(estimates), accounting=read_table(accounting)
        )
        for audit, estimates, accounting in zip(audits, *paths.values(), strict=True)
    ]
    write_table(args.output, pd.concat(rows))


if __name__ == "__main__":
    run(main)
