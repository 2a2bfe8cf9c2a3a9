"""What the runs of an ensemble share, made once before the first step."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from dpcanary.data.canaries import Canary, DirectionCanary, GradientCanary, InputCanary, canary_type
from dpcanary.data.observations import Observation
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradient_path import GradientPath
from dpcanary.training.gradients.choose import basis_of, path_of
from dpcanary.training.modules.supported import check_parameters
from dpcanary.training.slots import Slots, check_assignment, slots_of, table_of
from dpcanary.training.training_settings import Initialisation, InitialWeights, WorldAssignment


@dataclass(kw_only=True)
class Plan:
    """The arguments of `ensemble.train_ensemble`, checked against each other, and what they give.

    Attributes:
        num_candidates: labels of which each slot's record has one, where worlds are `candidates`.
        slots: what each world trains on in the targets' places.
        path: computes gradients.
        evaluator: computes logits of whole models. It is the path, unless that trains linear
            heads in the span of their records.

    Raises:
        InputError: if the module cannot be trained, or the canaries do not fit.
    """

    module: nn.Module
    records: Records
    canaries: Sequence[Canary]
    dpsgd: DPSGD
    seed: int
    observe: Observation
    worlds: WorldAssignment
    initialisation: Initialisation
    device: torch.device
    initial_weights: InitialWeights = InitialWeights.PYTORCH
    test_records: Records | None = None
    rotate: bool = True
    num_candidates: int | None = None
    slots: Slots = field(init=False)
    path: GradientPath = field(init=False)
    evaluator: GradientPath = field(init=False)

    def __post_init__(self) -> None:
        module, dpsgd = _unwrapped(self.module), self.dpsgd
        _check_mechanism(dpsgd, self.canaries)
        check_parameters(module)
        self.module = module
        count = sum(parameter.numel() for parameter in module.parameters())
        self.slots = slots_of(
            self.canaries,
            records=self.records,
            dpsgd=dpsgd,
            num_parameters=count,
            num_candidates=self.num_candidates,
        )
        if self.observe.is_of_gradients != self.slots.has_gradients:
            kind = type(self.canaries[0]).__name__
            raise InputError(f"observe={self.observe.value!r} is not for a {kind}")
        if self.observe is Observation.NOISY_GRADIENTS and not dpsgd.noise_multiplier:
            raise InputError(
                "observe='noisy_gradients' is for training with noise: give noise_multiplier above"
                " 0, or observe another way"
            )
        check_assignment(self.worlds, len(self.slots))
        table = table_of(
            self.records, self.canaries, self.device, num_candidates=self.num_candidates
        )
        self.path = self.evaluator = path_of(module, table, dpsgd=dpsgd, basis=None)
        if not self.rotate or self.observe is Observation.CHANGE_AND_LENGTH:
            return  # a length takes all parameters, also outside of the span
        basis = basis_of(module, table, self.slots, dpsgd=dpsgd, initialisation=self.initialisation)
        if basis is not None:
            self.path = path_of(module, table, dpsgd=dpsgd, basis=basis)


def _check_mechanism(dpsgd: DPSGD, canaries: Sequence[Canary]) -> None:
    """Refuses an infinite max_grad_norm as the unit of what is added, and no canary at all."""
    if math.isinf(dpsgd.max_grad_norm):
        if dpsgd.noise_multiplier:
            raise InputError(
                f"noise_multiplier {dpsgd.noise_multiplier:g} is in units of max_grad_norm, which"
                " is infinite: give a finite max_grad_norm, or noise_multiplier 0"
            )
        if canary_type(canaries) is GradientCanary:
            raise InputError(
                "gradient canary: its length is max_grad_norm, which is infinite: give a finite one"
            )
    period, num_steps = dpsgd.canary_period or 1, dpsgd.record_steps[-1]
    if period > num_steps:
        raise InputError(
            f"canary_period {period} is more than the {num_steps} steps, so no canary is inserted:"
            " lower it, or train for more steps"
        )


def default_observation(canaries: Sequence[Canary]) -> Observation:
    """What is observed of runs with these canaries by default."""
    return {
        InputCanary: Observation.LOGITS,
        GradientCanary: Observation.CHANGE,
        DirectionCanary: Observation.CHANGE_AND_LENGTH,
    }[canary_type(canaries)]


def _unwrapped(module: nn.Module) -> nn.Module:
    """The module inside an Opacus `GradSampleModule`, as a copy without Opacus's hooks.

    Any other module is returned as it is, but a copy if it has such hooks. Opacus need not be
    installed.
    """
    inner = getattr(module, "_module", None)
    if _is_of_opacus(type(module)) and isinstance(inner, nn.Module):
        module = inner
    if not any(_hooks_of_opacus(module)):
        return module
    plain = copy.deepcopy(module)
    for hooks, key in [*_hooks_of_opacus(plain)]:
        del hooks[key]
    return plain


def _hooks_of_opacus(module: nn.Module) -> Iterator[tuple[dict[int, Any], int]]:
    """Each hook of Opacus, as the hooks of a layer, and its key among them."""
    for layer in module.modules():
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks):
            for key, hook in hooks.items():
                if _is_of_opacus(hook.func if isinstance(hook, partial) else hook):
                    yield hooks, key


def _is_of_opacus(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("opacus.")
