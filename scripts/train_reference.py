"""Trains the reference model without privacy, and picks the target record."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.program import progress, run
from dpcanary.splits import read_split
from dpcanary.stages import ReferenceStage
from dpcanary.training.devices import chosen_device
from dpcanary.training.inputs import Records
from dpcanary.training.models import descent_of, module_of
from dpcanary.training.reference import write_reference
from dpcanary.training.simulation import train_reference


def main(argv: Sequence[str]) -> None:
    """Reads the split dataset and writes the reference file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=ReferenceStage.model_validate_json, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="cpu")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    stage: ReferenceStage = args.settings
    data = read_split(args.data)
    with progress(stage.num_steps, "step") as bar:
        reference = train_reference(
            module=module_of(stage, shape=data.features.shape[1:], num_classes=data.num_classes),
            records=Records.from_split(data, target=0),
            dpsgd=descent_of(stage),
            initialisation=stage.initialisation,
            device=chosen_device(args.device),
            on_progress=bar.update,
        )
    write_reference(args.output, reference)


if __name__ == "__main__":
    run(main)
