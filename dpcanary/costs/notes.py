"""What a reader of the costs must know: where models are timed, and what is not counted."""

from collections.abc import Iterator, Mapping

import torch

from dpcanary.costs.shapes import Shape
from dpcanary.settings import Experiment

_DOWNLOADED = ("cifar10", "sst2", "california_housing", "purchase100")


def timed_on(device: str) -> str:
    """Where models are timed: `cuda` where the config wants a GPU and there is one, else `cpu`.

    Args:
        device: the config's.
    """
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def notes_of(experiment: Experiment, shapes: Mapping[str, Shape]) -> Iterator[str]:
    """Lines for a reader.

    Args:
        experiment: the config, expanded.
        shapes: of the datasets that it uses, by name.
    """
    device = experiment.settings.device
    if device != "cpu" and timed_on(device) == "cpu":
        yield (
            f"device is {device}, but PyTorch finds no GPU here: these are core-hours of this"
            " machine's processor, not GPU-hours."
        )
    elif timed_on(device) == "cuda":
        yield "One job at a time has the GPU; with more GPUs or other ones, times differ."
    for name, shape in shapes.items():
        if shape.assumption:
            yield f"Dataset {name}: {shape.assumption}."
    yield "Not counted: " + "; ".join(_not_counted(experiment, shapes)) + "."


def _not_counted(experiment: Experiment, shapes: Mapping[str, Shape]) -> Iterator[str]:
    yield "waiting for disks and for other users of the machine"
    for name, shape in shapes.items():
        dataset = experiment.settings.datasets[name]
        if dataset.source in _DOWNLOADED and not dataset.files:
            yield f"downloading {dataset.source}"
        if dataset.encoder and shape.num_source:
            yield (
                f"encoding {shape.num_source:,} records of {dataset.source} by {dataset.encoder},"
                " where that is still to be done"
            )
