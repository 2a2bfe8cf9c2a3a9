"""Prints the audits of an experiment: name, settings, runs and shards."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.program import run
from dpcanary.settings.experiment import read_experiment, table_of_audits


def main(argv: Sequence[str]) -> None:
    """Prints a table with one line per audit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", type=Path, required=True, help="the resolved config")
    args = parser.parse_args(argv)
    print(table_of_audits(read_experiment(args.experiment)))


if __name__ == "__main__":
    run(main)
