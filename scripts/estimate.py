"""Turns an audit's scores into lower bounds on epsilon, at every recorded step."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.estimation.table import estimates_table
from dpcanary.files import read_arrays
from dpcanary.program import run
from dpcanary.stages import EstimationStage
from dpcanary.tables import write_table


def main(argv: Sequence[str]) -> None:
    """Writes one row per repeat, step, threshold rule and conversion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=EstimationStage.model_validate_json, required=True)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    header, arrays = read_arrays(args.scores)
    write_table(args.output, estimates_table(args.settings, header=header, arrays=arrays))


if __name__ == "__main__":
    run(main)
