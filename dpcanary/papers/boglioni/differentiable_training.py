"""A training without noise: its data, its optimiser, and steps that can be repeated bit for bit."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.devices import reproducible_convolutions
from dpcanary.data.records import Labels, Records
from dpcanary.errors import InputError


class State(NamedTuple):
    """What one step hands to the next, or the derivative of the objective in it, shapes (P,)."""

    parameters: Tensor
    momentum: Tensor


@dataclass(frozen=True)
class Descent:
    """Gradient descent as `torch.optim.SGD` does it, without dampening.

    Attributes:
        learning_rates: one per step.
        momentum: in [0, 1).
        nesterov: whether the momentum looks one step ahead; it needs momentum.
        weight_decay: added to the gradient, as a multiple of the parameters.
    """

    learning_rates: tuple[float, ...]
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        rates = tuple(
            checked_real(f"the learning rate of step {step}", rate, zero_included=True)
            for step, rate in enumerate(self.learning_rates, start=1)
        )
        if not rates:
            raise InputError("learning_rates is empty; give one rate per step")
        object.__setattr__(self, "learning_rates", rates)
        checked_real("momentum", self.momentum, most=1.0, zero_included=True)
        checked_real("weight_decay", self.weight_decay, zero_included=True)
        if self.nesterov and not self.momentum:
            raise InputError(
                "nesterov is on without momentum; set momentum above 0, or turn it off"
            )

    @property
    def num_steps(self) -> int:
        """How many steps there are."""
        return len(self.learning_rates)

    def updated(self, state: State, gradient: Tensor, *, step: int) -> State:
        """The state after a step (0 for the first) with this gradient of the loss."""
        gradient = gradient.add(state.parameters, alpha=self.weight_decay)
        momentum = gradient.add(state.momentum, alpha=self.momentum)
        move = gradient.add(momentum, alpha=self.momentum) if self.nesterov else momentum
        return State(state.parameters.sub(move, alpha=self.learning_rates[step]), momentum)

    def pulled_back(self, adjoint: State, *, step: int) -> tuple[State, Tensor]:
        """The transposed derivative of `updated`, which is linear in the state and the gradient.

        From the derivative in the state after the step, those in the state before it (for a fixed
        gradient of the loss) and in that gradient.
        """
        move = adjoint.parameters.mul(-self.learning_rates[step])
        momentum = adjoint.momentum.add(move, alpha=self.momentum if self.nesterov else 1.0)
        gradient = momentum + move if self.nesterov else momentum
        parameters = adjoint.parameters.add(gradient, alpha=self.weight_decay)
        return State(parameters, momentum.mul(self.momentum)), gradient


class Batch(NamedTuple):
    """The indices of one step's records, shape (n,), and canaries, shape (k,)."""

    records: NDArray[np.int64]
    canaries: NDArray[np.int64]


def shuffled_batches(
    *,
    num_records: int,
    inserted: NDArray[np.int64],
    batch_size: int,
    num_steps: int,
    stream: np.random.Generator,
) -> tuple[Batch, ...]:
    """Pieces of a random order of all records and the inserted canaries, drawn for every epoch.

    What is left of an epoch is not used in it, so no batch holds a record twice.

    Raises:
        InputError: if there are fewer records and canaries than a batch has.
    """
    checked_count("batch_size", batch_size)
    total = num_records + len(inserted)
    if batch_size > total:
        raise InputError(
            f"batch_size {batch_size} is more than the {num_records} records and"
            f" {len(inserted)} inserted canaries together; choose a smaller one"
        )

    def pieces() -> Iterator[NDArray[np.int64]]:
        while True:
            order = stream.permutation(total)
            for end in range(batch_size, total + 1, batch_size):
                yield order[end - batch_size : end]

    return tuple(
        Batch(piece[piece < num_records], inserted[piece[piece >= num_records] - num_records])
        for piece in islice(pieces(), num_steps)
    )


class Task:
    """What is learned: a module and its data, on one device and in the precision of the module.

    Only the form of the module is used: parameters are given to every method.
    """

    def __init__(
        self,
        *,
        module: nn.Module,
        records: Records,
        canary_labels: Labels,
        device: str | torch.device = "cpu",
    ) -> None:
        """Copies the module and the records to the device.

        Args:
            module: maps features (n, ...) to logits (n, K). Its derivatives must exist twice, and
                the output of a record must depend on that record alone.
            records: other than canaries, features of shape (n, ...).
            canary_labels: shape (m,).
            device: where to compute.

        Raises:
            InputError: if the module has buffers, as batch norm has; or a label has no logit; or
                features are not finite.
        """
        self.module = copy.deepcopy(module).to(device)
        for name, _ in self.module.named_buffers():
            raise InputError(
                f"the module has a buffer, {name}, that training would change unseen, as batch"
                " norm does; use group norm"
            )
        like = next(self.module.parameters())
        self.features = torch.as_tensor(records.features).to(like)
        self.labels = torch.as_tensor(records.labels).to(device)
        self.canary_labels = torch.as_tensor(np.asarray(canary_labels)).to(device)
        if not len(self.labels) or not len(self.canary_labels):
            raise InputError(
                f"there are {len(self.labels)} records and {len(self.canary_labels)} canaries;"
                " give at least one of each"
            )
        if not bool(self.features.isfinite().all()):
            raise InputError("features of the records are not all finite; remove nan and inf")
        with torch.no_grad():
            num_classes = self.module(self.features[:1]).shape[-1]
        for name, labels in (("records", self.labels), ("canaries", self.canary_labels)):
            if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
                raise InputError(
                    f"labels of the {name} are {int(labels.min())} to {int(labels.max())}; the"
                    f" module has logits for 0 to {num_classes - 1}"
                )

    def named(self, parameters: Tensor) -> dict[str, Tensor]:
        """The module's parameters by name, as views of a vector, shape (P,)."""
        shapes = {name: parameter.shape for name, parameter in self.module.named_parameters()}
        parts = torch.split(parameters, [shape.numel() for shape in shapes.values()])
        return {
            name: part.view(shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def losses(self, parameters: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of each record in nats, shape (n,)."""
        outputs = functional_call(self.module, self.named(parameters), (features,))
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    def batch_loss(self, parameters: Tensor, batch: Batch, canaries: Tensor) -> Tensor:
        """Mean cross-entropy of a batch in nats; `canaries` are the pixels of its canaries."""
        records = self.indices(batch.records)
        canary_labels = self.canary_labels[self.indices(batch.canaries)]
        features = torch.cat([self.features[records], canaries])
        labels = torch.cat([self.labels[records], canary_labels])
        return self.losses(parameters, features, labels).mean()

    def indices(self, values: NDArray[np.int64]) -> Tensor:
        """Indices on the task's device."""
        return torch.from_numpy(values).to(self.features.device)

    def pixels(self, features: object) -> Tensor:
        """Pixels of all canaries as a tensor of the task's own, shape (m, ...).

        Raises:
            InputError: if they have another shape than the records, or are not finite.
        """
        pixels = torch.as_tensor(features).detach().to(self.features)
        expected = (len(self.canary_labels), *self.features.shape[1:])
        if pixels.shape != expected:
            raise InputError(
                f"pixels of the canaries have shape {tuple(pixels.shape)}; {expected[0]} canaries"
                f" beside records of shape {expected[1:]} need shape {expected}"
            )
        if not bool(pixels.isfinite().all()):
            raise InputError("pixels of the canaries are not all finite; remove nan and inf")
        return pixels


@dataclass(frozen=True)
class Training:
    """Everything about a training but the pixels of its canaries.

    It starts from parameters in the module's order, shape (P,), and has one batch per step.

    Raises:
        InputError: if `start` has another length than the module's parameters, there is not one
            batch per learning rate, or a batch is empty or names a record that does not exist.
    """

    task: Task
    start: Tensor
    batches: tuple[Batch, ...]
    descent: Descent

    def __post_init__(self) -> None:
        start = self.start.detach().to(self.task.features).clone()
        object.__setattr__(self, "start", start)
        num_parameters = sum(part.numel() for part in self.task.module.parameters())
        if start.shape != (num_parameters,):
            raise InputError(
                f"start has shape {tuple(start.shape)}; the module has {num_parameters}"
                " parameters, so it must be one vector of that length"
            )
        if len(self.batches) != self.num_steps:
            raise InputError(
                f"there are {len(self.batches)} batches and {self.num_steps} learning rates; give"
                " one of each per step"
            )
        numbers = {"record": len(self.task.labels), "canary": len(self.task.canary_labels)}
        for step, batch in enumerate(self.batches, start=1):
            if not len(batch.records) + len(batch.canaries):
                raise InputError(f"the batch of step {step} is empty; give it a record")
            for name, indices in (("record", batch.records), ("canary", batch.canaries)):
                if len(indices) and not 0 <= indices.min() <= indices.max() < numbers[name]:
                    raise InputError(
                        f"the batch of step {step} names {name} {int(indices.min())} to"
                        f" {int(indices.max())}; there are 0 to {numbers[name] - 1}"
                    )

    @property
    def num_steps(self) -> int:
        """How many steps there are."""
        return self.descent.num_steps

    def first_state(self) -> State:
        """The state before the first step."""
        return State(self.start, torch.zeros_like(self.start))

    def advanced(self, state: State, pixels: Tensor, *, step: int) -> tuple[State, float]:
        """The state after a step (0 for the first), and the batch's loss before it.

        Raises:
            InputError: if the loss is not finite, or a parameter after the last step.
        """
        parameters = state.parameters.detach().requires_grad_()
        batch = self.batches[step]
        canaries = pixels[self.task.indices(batch.canaries)]
        loss = self.task.batch_loss(parameters, batch, canaries)
        place = f"step {step + 1} of {self.num_steps}"
        if not bool(loss.isfinite()):
            raise InputError(
                f"training diverged: the loss at {place} is {loss.item()}; lower the learning rates"
            )
        (gradient,) = torch.autograd.grad(loss, parameters)
        after = self.descent.updated(state, gradient, step=step)
        if step + 1 == self.num_steps and not bool(after.parameters.isfinite().all()):
            raise InputError(
                f"training diverged: parameters after {place} are not finite; lower the learning"
                " rates"
            )
        return after, loss.item()

    def curvature(
        self, parameters: Tensor, direction: Tensor, pixels: Tensor, *, step: int
    ) -> tuple[Tensor, Tensor | None, float]:
        """Second derivatives of a batch's loss, applied to a direction in the parameters, (P,).

        The derivative of <direction, gradient of the loss> in the parameters, shape (P,); in the
        pixels of the batch's canaries, shape (k, ...), or None if it has none; and the loss.
        """
        batch = self.batches[step]
        leaves = [parameters.detach().requires_grad_()]
        canaries = pixels[self.task.indices(batch.canaries)]
        if len(canaries):  # else the first layer need not be differentiated in its inputs
            leaves.append(canaries.requires_grad_())
        loss = self.task.batch_loss(leaves[0], batch, canaries)
        (gradient,) = torch.autograd.grad(loss, leaves[0], create_graph=True)
        parts = torch.autograd.grad(gradient, leaves, direction)
        return parts[0], parts[1] if len(canaries) else None, loss.item()


def trained(training: Training, pixels: Tensor) -> Tensor:
    """The parameters after the last step, shape (P,), for pixels of all canaries, shape (m, ...).

    Raises:
        InputError: if training diverges; it names the step.
    """
    pixels, state = training.task.pixels(pixels), training.first_state()
    with reproducible_convolutions():
        for step in range(training.num_steps):
            state, _ = training.advanced(state, pixels, step=step)
    return state.parameters
