"""Trains the reference model without privacy, and picks the target record."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.program import run
from dpcanary.splits import read_split
from dpcanary.stages import ReferenceStage
from dpcanary.training.reference import train_reference, write_reference


def main(argv: Sequence[str]) -> None:
    """Reads the split dataset and writes the reference file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=ReferenceStage.model_validate_json, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    stage: ReferenceStage = args.settings
    data = read_split(args.data)
    reference = train_reference(
        features=data.features,
        labels=data.labels,
        num_classes=data.num_classes,
        num_steps=stage.num_steps,
        learning_rate=stage.learning_rate,
    )
    write_reference(args.output, reference)


if __name__ == "__main__":
    run(main)
