"""Cuts a dataset into private, auxiliary and test records."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.datasets import split_dataset
from dpcanary.program import run
from dpcanary.splits import write_split
from dpcanary.stages import DatasetStage


def main(argv: Sequence[str]) -> None:
    """Reads the source that the settings name and writes the split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=DatasetStage.model_validate_json, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    stage: DatasetStage = args.settings
    split = split_dataset(source=stage.source, num_records=stage.num_records, seed=stage.seed)
    write_split(args.output, split, settings=stage.model_dump(mode="json"))


if __name__ == "__main__":
    run(main)
