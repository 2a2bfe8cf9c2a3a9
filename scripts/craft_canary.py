"""Crafts or chooses an audit's canary through the reference model."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from dpcanary.canaries import GradientCanary, InputCanary, PlacedCanary, write_canary
from dpcanary.canaries.crafted import crafted_input
from dpcanary.canaries.gradient import least_updated_coordinate
from dpcanary.canaries.natural import mislabeled, natural
from dpcanary.canaries.record_gradients import RecordGradients
from dpcanary.program import progress, run
from dpcanary.splits import SplitDataset, read_split
from dpcanary.stages import CanaryStage
from dpcanary.training.devices import chosen_device
from dpcanary.training.inputs import Records
from dpcanary.training.models import mechanism_of, module_of
from dpcanary.training.reference import Reference, read_reference
from dpcanary.training.simulation import accumulated_updates
from dpcanary.vocabulary import Canary


def main(argv: Sequence[str]) -> None:
    """Reads data and reference, and writes the canary file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=CanaryStage.model_validate_json, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="cpu")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    stage: CanaryStage = args.settings
    data, reference = read_split(args.data), read_reference(args.reference)
    module = module_of(stage, shape=data.features.shape[1:], num_classes=data.num_classes)
    if stage.canary is Canary.GRADIENT:
        canary = _gradient(stage, data, reference, module, chosen_device(args.device))
    else:
        canary = _input(stage, data, reference, module)
    target_label = int(data.labels[reference.target])
    write_canary(args.output, PlacedCanary(canary, reference.target, target_label))


def _gradient(
    stage: CanaryStage,
    data: SplitDataset,
    reference: Reference,
    module: nn.Module,
    device: torch.device,
) -> GradientCanary:
    with progress(stage.num_steps, "step") as bar:
        moved = accumulated_updates(
            module=module,
            records=Records.from_split(data, target=reference.target),
            dpsgd=mechanism_of(stage, record_steps=(stage.num_steps,), noise_multiplier=0.0),
            initialisation=stage.initialisation,
            seed=stage.seed,
            device=device,
            on_progress=bar.update,
        )
    return least_updated_coordinate(moved)


def _input(
    stage: CanaryStage, data: SplitDataset, reference: Reference, module: nn.Module
) -> InputCanary:
    gradients = RecordGradients(module, reference.parameters, stage.loss)
    features, label = data.features[reference.target], int(data.labels[reference.target])
    known = {"gradients": gradients, "target_features": features, "target_label": label}
    if stage.canary is Canary.MISLABELED:
        return mislabeled(**known, num_classes=data.num_classes)
    if stage.canary is Canary.NATURAL:
        auxiliary = data.auxiliary_features, data.auxiliary_labels
        return natural(**known, auxiliary_features=auxiliary[0], auxiliary_labels=auxiliary[1])
    count, size = stage.crafting_steps, stage.crafting_step_size
    with progress(count, "step") as bar:
        return crafted_input(**known, num_steps=count, step_size=size, on_progress=bar.update)


if __name__ == "__main__":
    run(main)
