"""What is learned: a module, its records, and the labels of canaries."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from dpcanary.checks import checked_count
from dpcanary.errors import InputError
from dpcanary.records import Records


@dataclass(frozen=True)
class Batch:
    """The records of one step.

    Attributes:
        records: indices of records that are no canaries, shape (n,).
        canaries: indices of canaries, shape (k,).
    """

    records: NDArray[np.int64]
    canaries: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.records) + len(self.canaries)


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

    Args:
        num_records: records that are no canaries.
        inserted: indices of the canaries that are trained on, shape (k,).
        batch_size: records and canaries of each batch.
        num_steps: batches.
        stream: draws the orders.

    Raises:
        InputError: if there are fewer records and canaries than a batch has.
    """
    checked_count("batch_size", batch_size)
    checked_count("num_steps", num_steps)
    total = num_records + len(inserted)
    if batch_size > total:
        raise InputError(
            f"batch_size {batch_size} is more than the {num_records} records and"
            f" {len(inserted)} inserted canaries together; choose a smaller one"
        )
    pieces = _pieces(total, batch_size, stream)
    return tuple(
        Batch(piece[piece < num_records], inserted[piece[piece >= num_records] - num_records])
        for piece in islice(pieces, num_steps)
    )


def _pieces(
    total: int, batch_size: int, stream: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    while True:
        order = stream.permutation(total)
        for end in range(batch_size, total + 1, batch_size):
            yield order[end - batch_size : end]


@dataclass(frozen=True)
class Task:
    """A module and its data, on the device and in the precision of the module.

    Attributes:
        module: only its form is used. Parameters are given to every method.
        features: of the records that are no canaries, shape (n, ...).
        labels: shape (n,).
        canary_labels: shape (m,).
    """

    module: nn.Module
    features: Tensor
    labels: Tensor
    canary_labels: Tensor

    def named(self, parameters: Tensor) -> dict[str, Tensor]:
        """The module's parameters by name, as views of a vector, shape (P,)."""
        own = dict(self.module.named_parameters())
        parts = torch.split(parameters, [parameter.numel() for parameter in own.values()])
        return {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(own.items(), parts, strict=True)
        }

    def losses(self, parameters: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of each record in nats, shape (n,)."""
        outputs = functional_call(self.module, self.named(parameters), (features,))
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    def canary_losses(self, parameters: Tensor, pixels: Tensor) -> Tensor:
        """Cross-entropy of each canary in nats, shape (m,), of pixels of shape (m, ...)."""
        return self.losses(parameters, pixels, self.canary_labels)

    def batch_loss(self, parameters: Tensor, batch: Batch, canaries: Tensor) -> Tensor:
        """Mean cross-entropy of a batch in nats; `canaries` are the pixels of its canaries."""
        records, own = (self.indices(part) for part in (batch.records, batch.canaries))
        features = torch.cat([self.features[records], canaries])
        labels = torch.cat([self.labels[records], self.canary_labels[own]])
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


def task_of(
    *,
    module: nn.Module,
    records: Records,
    canary_labels: NDArray[np.int64],
    device: str | torch.device = "cpu",
) -> Task:
    """A task from records.

    Args:
        module: maps features (n, ...) to logits (n, K). All its parameters are trained. Its
            derivatives must exist twice, and the output of a record must depend on that record
            alone.
        records: other than canaries, features of shape (n, ...).
        canary_labels: shape (m,).
        device: where to compute.

    Raises:
        InputError: if the module has buffers, as batch norm has; or a label has no logit; or
            features are not finite.
    """
    module = copy.deepcopy(module).to(device)
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise InputError(
            f"the module has a buffer, {buffers[0]}, that training would change unseen, as batch"
            " norm does; use group norm"
        )
    like = next(module.parameters())
    features = torch.as_tensor(records.features).to(like)
    labels = torch.as_tensor(np.asarray(canary_labels)).to(device)
    task = Task(module, features, torch.as_tensor(records.labels).to(device), labels)
    _check(task)
    return task


def _check(task: Task) -> None:
    if not len(task.labels) or not len(task.canary_labels):
        raise InputError(
            f"there are {len(task.labels)} records and {len(task.canary_labels)} canaries; give at"
            " least one of each"
        )
    if not bool(task.features.isfinite().all()):
        raise InputError("features of the records are not all finite; remove nan and inf")
    with torch.no_grad():
        num_classes = task.module(task.features[:1]).shape[-1]
    for name, labels in (("records", task.labels), ("canaries", task.canary_labels)):
        if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
            raise InputError(
                f"labels of the {name} are {int(labels.min())} to {int(labels.max())}; the module"
                f" has logits for 0 to {num_classes - 1}"
            )


@contextmanager
def reproducible_convolutions() -> Iterator[None]:
    """Makes a GPU's convolutions the same at every repetition. On a processor they always are."""
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False, allow_tf32=False):
        yield
