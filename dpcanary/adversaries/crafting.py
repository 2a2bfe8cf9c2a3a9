"""What a function that crafts canaries gets."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import vector_to_parameters
from tqdm import tqdm

from dpcanary.adversaries.adversary_settings import CraftingStage, MetagradientStage, Purpose
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.plugins import function_named
from dpcanary.core.randomness import generator
from dpcanary.data.canaries import Canary, CanarySet, InputCanary
from dpcanary.data.records import Labels, Records, Split
from dpcanary.errors import InputError
from dpcanary.training.losses import record_losses
from dpcanary.training.models import module_of
from dpcanary.training.modules.rewriting import prepared
from dpcanary.training.simulated_trainings import Reference
from dpcanary.training.training_settings import Loss, Sampling

# Bytes of gradients in memory at once.
_BYTES_AT_ONCE = 2**28
_CPU = torch.device("cpu")

# Takes a number of units of work and the unit's name, and gives a progress bar.
Progress = Callable[[int, str], AbstractContextManager["tqdm[Any]"]]


@dataclass(frozen=True)
class Target:
    """A target, for which a canary is crafted: the private record of this index."""

    index: int
    features: NDArray[np.float32]
    label: int | float


def input_canary(record: Records, target: Target) -> InputCanary:
    """The canary that puts a single record (`Records` of length 1) in the place of a target."""
    return InputCanary(record.features[0], record.labels[0].item(), target.index)


def drawn_targets(private: Records, *, seed: int, count: int) -> list[Target]:
    """Private records that are drawn at random, by the audit's seed."""
    stream = generator(seed=seed, purpose=Purpose.TARGETS)
    return _targets_at(stream.permutation(len(private))[:count], private)


def _targets_at(indices: Iterable[int], private: Records) -> list[Target]:
    return [
        Target(int(index), private.features[index], private.labels[index].item())
        for index in indices
    ]


class RecordGradients:
    """Gradients of records at one model, in double precision."""

    def __init__(
        self,
        module: nn.Module,
        parameters: NDArray[np.float32],
        loss: Loss,
        *,
        device: torch.device = _CPU,
    ) -> None:
        """Puts the parameters, shape (parameters,) in the module's order, into a copy of it.

        The copy drops no units.
        """
        self._device, self._loss = device, loss
        self._module = prepared(module).to(device).double()
        values = torch.from_numpy(parameters.astype(np.float64)).to(device)
        vector_to_parameters(values, self._module.parameters())
        self._module.requires_grad_()
        self._parameters: dict[str, Tensor] = dict(self._module.named_parameters())

    def inputs(self, features: NDArray[np.float32]) -> Tensor:
        """Features on the device: real numbers in double precision, token ids as they are."""
        inputs = torch.from_numpy(np.ascontiguousarray(features)).to(self._device)
        return inputs.double() if inputs.is_floating_point() else inputs

    def labels(self, labels: float | Labels) -> Tensor:
        """Labels on the device, in the given shape."""
        return torch.as_tensor(labels, device=self._device)

    def of(self, features: Tensor, label: Tensor) -> Tensor:
        """Gradient of one record, shape (parameters,), differentiable in the features.

        These come from `inputs`, and the label, shape (), from `labels`.
        """
        # In two thirds of the time of `torch.func.grad`, which is for many records at once.
        pieces = torch.autograd.grad(
            self._loss_at(self._parameters, features, label),
            [*self._parameters.values()],
            create_graph=features.requires_grad,
            materialize_grads=True,
        )
        return _flat(pieces)

    def _loss_at(self, parameters: dict[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(self._module, parameters, (features.unsqueeze(0),))
        return record_losses(outputs, label.unsqueeze(0), self._loss)[0]

    def of_target(self, target: Target) -> Tensor:
        """Gradient of a target, shape (parameters,)."""
        return self.of(self.inputs(target.features), self.labels(target.label))

    def cosines(self, records: Records, target: Tensor) -> NDArray[np.float64]:
        """Cosines of n records' gradients with a target gradient, shape (n,); 0 for a zero one."""
        # With those of the module, each record's graph would be kept until the last.
        parameters = {name: part.detach() for name, part in self._parameters.items()}

        def cosine(record: Tensor, label: Tensor) -> Tensor:
            pieces = grad(self._loss_at)(parameters, record, label).values()
            return torch.nn.functional.cosine_similarity(_flat(pieces), target, dim=0)

        chunk = max(1, _BYTES_AT_ONCE // (8 * len(target)))
        inputs = self.inputs(records.features), self.labels(records.labels)
        return np.asarray(vmap(cosine, chunk_size=chunk)(*inputs).cpu().numpy())


def _flat(pieces: Iterable[Tensor]) -> Tensor:
    return torch.cat([piece.flatten() for piece in pieces])


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
        return _targets_at(self.reference.least_confident(slots), private)

    @cached_property
    def possible_labels(self) -> Labels:
        """The labels that a canary may have, ascending, shape (n,).

        They are all classes; where labels are numbers, the smallest and the largest one that the
        adversary knows.
        """
        labels = self.data.auxiliary.labels
        if self.data.private.has_classes:
            return np.arange(self.data.num_classes)
        return np.unique([labels.min(), labels.max()])

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
        return module_of(
            self.stage,
            shape=self.data.private.features.shape[1:],
            num_classes=self.data.num_classes,
            pretrained=self.pretrained,
        )

    @property
    def num_parameters(self) -> int:
        """Parameters of the audited model."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @cached_property
    def gradients(self) -> RecordGradients:
        """Gradients of single records at the reference model, which must be there."""
        if self.reference is None:
            raise InputError(
                f"{self.stage.function} uses the reference model: its entry in the catalogue must"
                " not say uses_reference=False"
            )
        return RecordGradients(
            self.module, self.reference.parameters, self.stage.loss, device=self.device
        )


def optimise_canaries(
    stage: MetagradientStage, *, private: Records, device: torch.device, progress: Progress
) -> CanarySet:
    """Optimises canaries on private records, by the function that the stage names."""
    assert stage.optimise is not None
    function = function_named(stage.optimise)
    optimised: CanarySet = function(stage, private=private, device=device, progress=progress)
    return optimised


def craft_canaries(crafting: Crafting) -> CanarySet:
    """Crafts the canaries of an audit, one for each slot.

    Raises:
        InputError: if the crafting function does not exist, or does not return one canary for each
            slot.
    """
    function, slots = crafting.stage.function, crafting.stage.num_slots
    labels = crafting.data.private.labels
    crafted = function_named(function)(crafting)
    canaries = [*crafted] if isinstance(crafted, Iterable) else [crafted]
    for canary in canaries:
        if not isinstance(canary, Canary):
            raise InputError(f"{function} returned {canary!r}; it must return a list of canaries")
        if not isinstance(canary.target, int | np.integer):
            raise InputError(
                f"{function} returned a canary whose target is a {type(canary.target).__name__}; it"
                " must be the index of a private record: target.index"
            )
        if not 0 <= canary.target < len(labels):
            raise InputError(
                f"{function} returned a canary whose target is {canary.target}, and there are"
                f" {len(labels)} private records: give the index of one of them"
            )
    if len(canaries) != slots:
        raise InputError(f"{function} made {len(canaries)} canaries for {slots} slots")
    # A function may choose other targets than those that it is offered.
    return CanarySet(tuple(canaries), tuple(labels[canary.target].item() for canary in canaries))
