"""What the runs of an ensemble share, made once before the first step."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dpcanary.canaries import Canary, DirectionCanary, GradientCanary, InputCanary, canary_type
from dpcanary.errors import InputError
from dpcanary.observations import Observation
from dpcanary.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradients.choose import basis_of, path_of
from dpcanary.training.gradients.gradient_path import GradientPath
from dpcanary.training.modules.supported import check_parameters
from dpcanary.training.settings import Initialisation, InitialWeights, WorldAssignment
from dpcanary.training.slots import Slots, check_assignment, slots_of, table_of


@dataclass(frozen=True)
class Plan:
    """What the runs of an ensemble share.

    Attributes:
        module: the architecture.
        records: the private records.
        test_records: the records that accuracy is measured on, or None.
        dpsgd: the mechanism.
        slots: what each world trains on in the targets' places.
        observe: what is kept of a run.
        worlds: how worlds are assigned.
        path: computes gradients.
        evaluator: computes logits of whole models. It is the path, unless that trains linear
            heads in the span of their records.
        initialisation: how runs start.
        initial_weights: how random initial parameters are drawn.
        seed: the audit's seed.
        device: where to compute.
    """

    module: nn.Module
    records: Records
    test_records: Records | None
    dpsgd: DPSGD
    slots: Slots
    observe: Observation
    worlds: WorldAssignment
    path: GradientPath
    evaluator: GradientPath
    initialisation: Initialisation
    initial_weights: InitialWeights
    seed: int
    device: torch.device


def make_plan(
    *,
    module: nn.Module,
    records: Records,
    canaries: Sequence[Canary],
    dpsgd: DPSGD,
    seed: int,
    observe: Observation,
    worlds: WorldAssignment,
    initialisation: Initialisation,
    device: torch.device,
    initial_weights: InitialWeights = InitialWeights.PYTORCH,
    test_records: Records | None = None,
    rotate: bool = True,
) -> Plan:
    """Checks that the arguments of `ensemble.train_ensemble` fit together, and lays records out.

    Raises:
        InputError: if the module cannot be trained, or the canaries do not fit.
    """
    module = unwrapped(module)
    check_parameters(module)
    count = sum(parameter.numel() for parameter in module.parameters())
    slots = slots_of(canaries, records=records, dpsgd=dpsgd, num_parameters=count)
    if observe.is_of_gradients != slots.has_gradients:
        kind = type(canaries[0]).__name__
        raise InputError(f"observe={observe.value!r} is not for a {kind}")
    check_assignment(worlds, len(slots))
    table = table_of(records, canaries, device)
    path = evaluator = path_of(module, table, dpsgd=dpsgd, basis=None)
    basis = None
    if rotate and observe is not Observation.CHANGE_AND_LENGTH:  # which takes all parameters
        basis = basis_of(module, table, slots, dpsgd=dpsgd, initialisation=initialisation)
    if basis is not None:
        path = path_of(module, table, dpsgd=dpsgd, basis=basis)
    return Plan(
        module=module,
        records=records,
        test_records=test_records,
        dpsgd=dpsgd,
        slots=slots,
        observe=observe,
        worlds=worlds,
        path=path,
        evaluator=evaluator,
        initialisation=initialisation,
        initial_weights=initial_weights,
        seed=seed,
        device=device,
    )


def default_observation(canaries: Sequence[Canary]) -> Observation:
    """What is observed of runs with these canaries by default."""
    return {
        InputCanary: Observation.LOGITS,
        GradientCanary: Observation.CHANGE,
        DirectionCanary: Observation.CHANGE_AND_LENGTH,
    }[canary_type(canaries)]


_OPACUS = "opacus."


def unwrapped(module: nn.Module) -> nn.Module:
    """A copy of the module inside an Opacus `GradSampleModule`, without Opacus's hooks.

    Any other module is returned as it is. Opacus need not be installed.
    """
    inner = getattr(module, "_module", None)
    if not type(module).__module__.startswith(_OPACUS) or not isinstance(inner, nn.Module):
        return module
    found = copy.deepcopy(inner)
    for layer in found.modules():
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks):
            for key in [key for key, hook in hooks.items() if _is_of_opacus(hook)]:
                del hooks[key]
    return found


def _is_of_opacus(hook: Any) -> bool:
    function = hook.func if isinstance(hook, partial) else hook
    return str(getattr(function, "__module__", "")).startswith(_OPACUS)
