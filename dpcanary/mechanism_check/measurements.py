"""Updates of short trainings on the probes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from dpcanary.errors import InputError
from dpcanary.global_generators import seed_global_generators
from dpcanary.randomness import generator


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    MECHANISM_CHECK = 23  # the seeds of trainings on probes
    BATCH_SIZES = 24  # drawn no more: the law of batch sizes is computed; the number stays taken


# Norms of gradients at the start, in units of C. Small ones show how sums are divided. The others
# show clipping: it must not act on those below 1, and must bring all others to 1.
SMALL = 0.01
NORMS = (0.5, 0.9, 1.1, 1.5, 2.0, 5.0, 10.0, 30.0, 100.0)
# Gradients up to this norm change so little in one step that the second one clips them too.
STABLE = 10.0
# Of `Probe`: tensors, each of which holds the same share of every record's gradient, and the values
# of a record in all of them.
NUM_TENSORS, PARAMETERS_OF_RECORD = 5, 8


class Probe(nn.Module):
    """Logits of two classes, from five parameter tensors that are 0 at the start.

    Record i is a vector of which component i alone is not 0. It has columns or rows of its own in
    all tensors, so its part in the update of each can be read off: what is left out of clipping or
    noise shows, also if it is a bias.
    """

    def __init__(self, num_records: int) -> None:
        super().__init__()
        # Two tensors of one shape, which could get the same noise.
        self.first = nn.Linear(num_records, 2, bias=False)
        self.second = nn.Linear(num_records, 2, bias=False)
        self.embedding = nn.Embedding(num_records, 2)
        # A bias for each record: one for all would show neither whose part it holds nor, having few
        # values, whether its noise is right.
        self.hidden = nn.Linear(1, num_records)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """Logits, shape (records, 2), of features of shape (records, num_records)."""
        size = features.sum(dim=1, keepdim=True)
        # A sequence of one word: some libraries take embeddings of sequences alone.
        embedded = size * self.embedding(features.argmax(dim=1, keepdim=True)).squeeze(1)
        units = self.hidden(torch.ones_like(size))  # the same for all, before each takes its own
        own = (units * features).sum(dim=1, keepdim=True)
        # So that a unit's gradient is as large as that of two logits.
        opposite = torch.cat([own, -own], dim=1) / sqrt(2)
        logits: Tensor = self.first(features) + self.second(features) + embedded + opposite
        return logits

    def moved(self) -> dict[str, NDArray[np.float64]]:
        """How far the parameters are from the start, by name."""
        return {
            name: parameter.detach().cpu().double().numpy()
            for name, parameter in self.named_parameters()
        }


@dataclass(frozen=True)
class Settings:
    """What a training loop is asked to do. Its optimiser must be SGD without momentum.

    Attributes:
        sample_rate: of Poisson sampling. The expected batch size is that times the records.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        max_grad_norm: the clipping norm C.
        learning_rate: of SGD.
        num_steps: optimiser steps, not epochs.
        seed: another one for each training.
    """

    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    num_steps: int
    seed: int


def norms_of(count: int) -> NDArray[np.float64]:
    """Norms of the loud records' gradients, over C; every other one is small. Shape (count,)."""
    norms = np.full(count, SMALL)
    norms[0::2] = np.resize(NORMS, count // 2)
    return norms


def _loud_records(count: int, max_grad_norm: float) -> TensorDataset:
    """Records of a component each, whose gradients have the norms of `norms_of` at the start.

    The gradient in each logit is 1/2 or -1/2 at the start. Times a feature x, the gradient in each
    of the five tensors has the norm x / sqrt(2).
    """
    features = norms_of(count) * max_grad_norm * sqrt(2 / NUM_TENSORS)
    return TensorDataset(
        torch.diag(torch.tensor(features, dtype=torch.float32)),
        torch.zeros(count, dtype=torch.int64),
    )


Array = NDArray[np.float64]
# Values by the name of a parameter tensor.
Tensors = dict[str, Array]
# Trains a module on a dataset, in place. What it returns is not used.
Train = Callable[[nn.Module, Dataset[object], Settings], object]
# Parts are in units of C; the least of a record that is in a batch is 1e-2.
_PRESENT = 1e-4


@dataclass(frozen=True)
class Plan:
    """What is measured: this number of trainings of each kind, on so many records.

    The number of steps, the noise and the seed of the settings are replaced.
    """

    settings: Settings
    num_records: int
    num_trainings: int
    seed: int

    @property
    def total(self) -> int:
        """Trainings of all kinds."""
        return 4 * self.num_trainings


@dataclass(frozen=True)
class Measurements:
    """Updates in the units that the accountant assumes, R trainings of each kind on N records.

    Attributes:
        sample_rate: that the accountant assumes.
        norms: of the records' gradients before clipping, over C; shape (N,).
        noise: of one step in each parameter tensor, over learning rate * noise multiplier * C /
            expected batch size; shape (R, shape of the tensor). Standard normal if all is right.
        noise_of_two: the same after two steps.
        parts: the parts of records in each tensor in one step almost without noise, over learning
            rate * C / expected batch size / sqrt(tensors); shape (R, N). In every tensor, this is
            the norm of the record's clipped gradient over C, or 0 if it is not in the batch.
        parts_of_two: the same after two steps.
    """

    sample_rate: float
    norms: Array
    noise: Tensors
    noise_of_two: Tensors
    parts: Tensors
    parts_of_two: Tensors

    @cached_property
    def drawn(self) -> NDArray[np.bool_]:
        """Which records were in the batch of one step, shape (R, N).

        Others have parts of 0, or of next to no noise.
        """
        drawn: NDArray[np.bool_] = np.max([*self.parts.values()], axis=0) > _PRESENT
        return drawn


def measure(train: Train, plan: Plan, on_progress: Callable[[int], object]) -> Measurements:
    """Runs all trainings; raises an InputError if one fails or diverges."""
    settings, count = plan.settings, plan.num_records
    loud = _loud_records(count, settings.max_grad_norm)
    # Records whose gradients are 0: an update is noise alone.
    silent = TensorDataset(torch.zeros(count, count), torch.zeros(count, dtype=torch.int64))
    quiet = replace(settings, noise_multiplier=1e-7)  # as good as none; many libraries refuse 0
    kinds = [
        (records, replace(wanted, num_steps=num_steps))
        for records, wanted in ((silent, settings), (loud, quiet))
        for num_steps in (1, 2)
    ]
    moved: list[Tensors] = []
    with _one_thread():
        for kind, (records, wanted) in enumerate(kinds):
            found = []
            for index in range(plan.num_trainings):
                run = kind * plan.num_trainings + index
                found.append(_moved(train, records, wanted, plan, run))
                on_progress(1)
            moved.append({name: np.stack([one[name] for one in found]) for name in found[0]})
    unit = settings.learning_rate * settings.max_grad_norm / (settings.sample_rate * count)
    of_noise, of_parts = unit * settings.noise_multiplier, unit / sqrt(NUM_TENSORS)
    noise, noise_of_two = (
        {name: values / of_noise for name, values in tensors.items()} for tensors in moved[:2]
    )
    parts, parts_of_two = (
        {name: _by_record(values / of_parts, count) for name, values in tensors.items()}
        for tensors in moved[2:]
    )
    return Measurements(
        settings.sample_rate, norms_of(count), noise, noise_of_two, parts, parts_of_two
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """On so small modules, a second thread that waits for a core takes far longer than it saves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _by_record(moved: Array, count: int) -> Array:
    """Norms over what belongs to each of N records, shape (R, N), in a tensor with an axis N."""
    rows = np.moveaxis(moved, moved.shape.index(count, 1), 1)
    norms: Array = np.linalg.norm(rows.reshape(*rows.shape[:2], -1), axis=2)
    return norms


def _moved(
    train: Train, records: Dataset[object], settings: Settings, plan: Plan, run: int
) -> Tensors:
    draws = generator(seed=plan.seed, purpose=Purpose.MECHANISM_CHECK, index=run)
    seed = int(draws.integers(2**31))
    seed_global_generators(seed)
    probe = Probe(plan.num_records)
    try:
        train(probe, records, replace(settings, seed=seed))
    except Exception as error:
        raise InputError(
            f"the training failed on a probe ({type(error).__name__}: {error}); it must train any"
            " module with two outputs, such as one with a bias and an embedding, on a dataset of"
            " vectors and labels, as its settings say, also if a batch is empty"
        ) from error
    moved = probe.moved()
    if not all(np.isfinite(values).all() for values in moved.values()):
        raise InputError("the training of a probe has diverged: lower the learning rate")
    return moved
