"""Canaries are crafted: what a function that crafts them is given."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpcanary.adversaries.crafting_stage import CraftingStage
from dpcanary.adversaries.record_gradients import RecordGradients
from dpcanary.canaries import Canary, CanarySet, InputCanary
from dpcanary.errors import InputError
from dpcanary.plugins import function_named
from dpcanary.records import Records, Split
from dpcanary.training.models import module_of
from dpcanary.training.reference import Reference


class Bar(Protocol):
    """A progress bar."""

    def update(self, n: int) -> object:
        """Counts units of work that are done."""


# Called with the units of work to come and their name, gives a progress bar.
Progress = Callable[[int, str], AbstractContextManager[Bar]]


class _Silent:
    def update(self, n: int) -> None:
        """Shows nothing."""


def silently(total: int, unit: str) -> AbstractContextManager[Bar]:
    """No progress bar."""
    return nullcontext(_Silent())


@dataclass(frozen=True)
class Target:
    """A target record, for which a canary is crafted.

    Attributes:
        index: among the private records.
        features: shape (...).
        label: class index.
    """

    index: int
    features: NDArray[np.float32]
    label: int


@dataclass(frozen=True)
class Crafting:
    """What canaries are made from.

    Attributes:
        stage: settings.
        data: private, auxiliary and test records.
        reference: the model that was trained on the private records without privacy.
        device: where to compute.
        progress: makes a progress bar.
    """

    stage: CraftingStage
    data: Split
    reference: Reference
    device: torch.device
    progress: Progress = silently

    @cached_property
    def targets(self) -> list[Target]:
        """The target record of each slot: those that the reference is least sure of."""
        private = self.data.private
        return [
            Target(int(index), private.features[index], int(private.labels[index]))
            for index in self.reference.least_confident(self.stage.num_slots)
        ]

    @cached_property
    def module(self) -> nn.Module:
        """The model that is audited, with known parameters."""
        shape = self.data.private.features.shape[1:]
        return module_of(self.stage, shape=shape, num_classes=self.data.num_classes)

    @cached_property
    def gradients(self) -> RecordGradients:
        """Gradients of single records at the reference model."""
        return RecordGradients(
            self.module, self.reference.parameters, self.stage.loss, device=self.device
        )


def craft_canaries(crafting: Crafting) -> CanarySet:
    """Crafts the canaries of an audit, one for each slot.

    Raises:
        InputError: if the crafting function does not exist, fails, or returns another number of
            canaries than there are slots.
    """
    found: list[Canary] = list(function_named(crafting.stage.function)(crafting))
    if len(found) != crafting.stage.num_slots:
        raise InputError(
            f"{crafting.stage.function} made {len(found)} canaries for"
            f" {crafting.stage.num_slots} slots"
        )
    return CanarySet(tuple(found), tuple(target.label for target in crafting.targets))


def input_canary(record: Records, target: Target) -> InputCanary:
    """A canary from records of which there is one.

    Args:
        record: one record.
        target: whose place it takes.
    """
    return InputCanary(record.features[0], int(record.labels[0]), target.index)
