"""Updates of short trainings on the probes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

from dpcanary.errors import InputError
from dpcanary.global_generators import seed_global_generators
from dpcanary.mechanism_check.probes import (
    NUM_TENSORS,
    Probe,
    Settings,
    loud_records,
    norms_of,
    silent_records,
)
from dpcanary.mechanism_check.purposes import Purpose
from dpcanary.randomness import generator

Array = NDArray[np.float64]
# Values by the name of a parameter tensor.
Tensors = dict[str, Array]
# Trains a module on a dataset, in place. What it returns is not used.
Train = Callable[[nn.Module, Dataset[object], Settings], object]
Progress = Callable[[int], object]
# Noise that is as good as none; many libraries refuse 0.
NO_NOISE = 1e-7
# Parts are in units of C; the least of a record that is in a batch is 1e-2.
_PRESENT = 1e-4


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        settings: of every training; its number of steps, noise and seed are replaced.
        num_records: of the probes' datasets.
        num_trainings: of each kind.
        seed: from which the trainings' seeds are derived.
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
            the norm of the record's whole clipped gradient over C, or 0 if the record is not in
            the batch.
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
        found: NDArray[np.bool_] = np.max([*self.parts.values()], axis=0) > _PRESENT
        return found


def measure(train: Train, plan: Plan, on_progress: Progress) -> Measurements:
    """Runs all trainings.

    Raises:
        InputError: if a training fails or diverges.
    """
    settings, count = plan.settings, plan.num_records
    loud = loud_records(count, settings.max_grad_norm)
    quiet = replace(settings, noise_multiplier=NO_NOISE)
    kinds: list[tuple[Dataset[object], Settings]] = [
        (silent_records(count), replace(settings, num_steps=1)),
        (silent_records(count), replace(settings, num_steps=2)),
        (loud, replace(quiet, num_steps=1)),
        (loud, replace(quiet, num_steps=2)),
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
    noise, noise_of_two = (_over(unit * settings.noise_multiplier, own) for own in moved[:2])
    parts, parts_of_two = (
        {name: _by_record(own, count) for name, own in _over(unit / sqrt(NUM_TENSORS), by).items()}
        for by in moved[2:]
    )
    return Measurements(
        settings.sample_rate, norms_of(count), noise, noise_of_two, parts, parts_of_two
    )


def _over(unit: float, moved: Tensors) -> Tensors:
    return {name: own / unit for name, own in moved.items()}


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
    """Norms over what belongs to each record in one tensor, shape (R, N).

    Args:
        moved: shape (R, shape of the tensor), which has one axis of length N.
        count: the records N.
    """
    rows = np.moveaxis(moved, moved.shape.index(count, 1), 1)
    found: Array = np.linalg.norm(rows.reshape(*rows.shape[:2], -1), axis=2)
    return found


def _moved(
    train: Train, records: Dataset[object], settings: Settings, plan: Plan, run: int
) -> Tensors:
    own = generator(seed=plan.seed, purpose=Purpose.MECHANISM_CHECK, index=run)
    seed = int(own.integers(2**31))
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
    if not all(np.isfinite(own).all() for own in moved.values()):
        raise InputError("the training of a probe has diverged: lower the learning rate")
    return moved
