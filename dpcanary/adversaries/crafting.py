"""What a function that crafts canaries gets."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from dpcanary.adjacency import Adjacency
from dpcanary.adversaries.crafting_stage import CraftingStage
from dpcanary.adversaries.purposes import Purpose
from dpcanary.adversaries.record_gradients import RecordGradients
from dpcanary.adversaries.target import Target, drawn_targets, targets_at
from dpcanary.canaries import Canary, CanarySet, InputCanary
from dpcanary.errors import InputError
from dpcanary.plugins import function_named
from dpcanary.randomness import generator
from dpcanary.records import Records, Split
from dpcanary.training.models import module_of
from dpcanary.training.options import Sampling
from dpcanary.training.reference import Reference

# Takes a number of units of work and the unit's name, and gives a progress bar.
Progress = Callable[[int, str], AbstractContextManager["tqdm[Any]"]]


@dataclass(frozen=True)
class Crafting:
    """What canaries are made from.

    Attributes:
        stage: settings.
        data: private, auxiliary and test records.
        reference: a model that was trained on the private records without privacy; None if the
            catalogue's entry says that it is not used.
        device: where to compute.
        noise_multiplier: sigma; None unless the audit's settings say that it is simulated.
        optimised: canaries that audits share; None unless the catalogue's entry says that they
            are used.
        pretrained: the parameters that runs start from, in the module's order; None unless the
            audit's settings say that the model is pretrained.
        progress: makes a progress bar; by default, one that shows nothing.
    """

    stage: CraftingStage
    data: Split
    reference: Reference | None
    device: torch.device
    noise_multiplier: float | None = None
    optimised: CanarySet | None = None
    pretrained: NDArray[np.float32] | None = None
    progress: Progress = lambda total, unit: tqdm(disable=True)

    @cached_property
    def targets(self) -> list[Target]:
        """The target record of each slot: the records that the reference is least sure of.

        Without a reference, they are drawn at random.
        """
        private, slots = self.data.private, self.stage.num_slots
        if self.reference is None:
            return drawn_targets(private, seed=self.stage.seed, count=slots)
        return targets_at(self.reference.least_confident(slots), private)

    def generator(self, purpose: Purpose) -> np.random.Generator:
        """The audit's random stream for a purpose."""
        return generator(seed=self.stage.seed, purpose=purpose)

    @property
    def left_out(self) -> list[int]:
        """Records that known batches leave out: under `substitute`, the targets."""
        replaces = self.stage.adjacency is Adjacency.SUBSTITUTE
        return [target.index for target in self.targets] if replaces else []

    @property
    def replaced(self) -> list[int]:
        """Records that do not train because of the canaries."""
        if self.stage.sampling is Sampling.FIXED:
            return self.left_out
        return [target.index for target in self.targets]

    @cached_property
    def module(self) -> nn.Module:
        """The audited model, with parameters that do not change from call to call."""
        shape = self.data.private.features.shape[1:]
        return module_of(
            self.stage,
            shape=shape,
            num_classes=self.data.num_classes,
            pretrained=self.pretrained,
        )

    @property
    def num_parameters(self) -> int:
        """Parameters of the audited model."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @cached_property
    def gradients(self) -> RecordGradients:
        """Gradients of single records at the reference model.

        Raises:
            InputError: if there is no reference model.
        """
        if self.reference is None:
            raise InputError(
                f"{self.stage.function} uses the reference model: its entry in the catalogue must"
                " not say uses_reference=False"
            )
        return RecordGradients(
            self.module, self.reference.parameters, self.stage.loss, device=self.device
        )


def craft_canaries(crafting: Crafting) -> CanarySet:
    """Crafts the canaries of an audit, one for each slot.

    Raises:
        InputError: if the crafting function does not exist, or does not return one canary for each
            slot.
    """
    function, slots = crafting.stage.function, crafting.stage.num_slots
    made = function_named(function)(crafting)
    found = [*made] if isinstance(made, Iterable) else [made]
    wrong = [canary for canary in found if not isinstance(canary, Canary)]
    if wrong:
        raise InputError(f"{function} returned {wrong[0]!r}; it must return a list of canaries")
    if len(found) != slots:
        raise InputError(f"{function} made {len(found)} canaries for {slots} slots")
    return CanarySet(tuple(found), tuple(target.label for target in crafting.targets))


def input_canary(record: Records, target: Target) -> InputCanary:
    """The canary that puts a single record (`Records` of length 1) in the place of a target."""
    return InputCanary(record.features[0], int(record.labels[0]), target.index)
