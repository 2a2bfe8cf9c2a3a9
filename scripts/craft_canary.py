"""Crafts or chooses an audit's canary through the reference model."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.canaries import GradientCanary, InputCanary, PlacedCanary, write_canary
from dpcanary.canaries.crafted import crafted_input
from dpcanary.canaries.gradient import least_updated_coordinate
from dpcanary.canaries.natural import mislabeled, natural
from dpcanary.program import progress, run
from dpcanary.splits import SplitDataset, read_split
from dpcanary.stages import CanaryStage
from dpcanary.training.reference import Reference, accumulated_updates, read_reference
from dpcanary.vocabulary import Canary


def main(argv: Sequence[str]) -> None:
    """Reads data and reference, and writes the canary file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=CanaryStage.model_validate_json, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    data, reference = read_split(args.data), read_reference(args.reference)
    placed = PlacedCanary(
        canary=craft(args.settings, data, reference),
        target=reference.target,
        target_label=int(data.labels[reference.target]),
    )
    write_canary(args.output, placed)


def craft(
    stage: CanaryStage, data: SplitDataset, reference: Reference
) -> InputCanary | GradientCanary:
    """The canary of the audit's kind."""
    if stage.canary is Canary.GRADIENT:
        return _gradient(stage, data)
    known = {
        "weights": reference.weights,
        "target_features": data.features[reference.target],
        "target_label": int(data.labels[reference.target]),
    }
    if stage.canary is Canary.MISLABELED:
        return mislabeled(**known)
    if stage.canary is Canary.NATURAL:
        return natural(
            **known,
            auxiliary_features=data.auxiliary_features,
            auxiliary_labels=data.auxiliary_labels,
        )
    with progress(stage.crafting_steps, "step") as bar:
        return crafted_input(
            **known,
            num_steps=stage.crafting_steps,
            step_size=stage.crafting_step_size,
            on_progress=bar.update,
        )


def _gradient(stage: CanaryStage, data: SplitDataset) -> GradientCanary:
    return least_updated_coordinate(
        accumulated_updates(
            features=data.features,
            labels=data.labels,
            num_classes=data.num_classes,
            sample_rate=stage.sample_rate,
            max_grad_norm=stage.max_grad_norm,
            learning_rate=stage.learning_rate,
            num_steps=stage.num_steps,
            seed=stage.seed,
        )
    )


if __name__ == "__main__":
    run(main)
