"""Cuts a dataset into private, auxiliary and test records."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.datasets.own_files import read_arrays_of
from dpcanary.datasets.source import Source
from dpcanary.datasets.sources import load_source
from dpcanary.datasets.splitting import split_dataset
from dpcanary.program import run
from dpcanary.splits import write_split
from dpcanary.stages import DatasetStage


def main(argv: Sequence[str]) -> None:
    """Reads the source that the settings name, or its encoded records, and writes the split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=DatasetStage.model_validate_json, required=True)
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="what it is read from")
    parser.add_argument("--features", type=Path, help="its records, already encoded")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    stage: DatasetStage = args.settings
    split = split_dataset(
        read_arrays_of(args.features) if args.features else _source(stage, args.files),
        num_records=stage.num_records,
        balanced=stage.balanced,
        num_auxiliary=stage.num_auxiliary,
        num_test=stage.num_test,
        seed=stage.seed,
    )
    write_split(args.output, split, settings=stage.model_dump(mode="json"))


def _source(stage: DatasetStage, files: Sequence[Path]) -> Source:
    return load_source(
        stage.source,
        files=files,
        max_records=stage.max_records,
        num_test=stage.num_test,
        seed=stage.seed,
    )


if __name__ == "__main__":
    run(main)
