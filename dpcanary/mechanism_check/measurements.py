"""Updates of short trainings on the probes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

from dpcanary.errors import InputError
from dpcanary.global_generators import seed_global_generators
from dpcanary.mechanism_check.probes import (
    LARGE,
    SMALL,
    Probe,
    Settings,
    loud_records,
    silent_records,
)
from dpcanary.mechanism_check.purposes import Purpose
from dpcanary.randomness import generator

Array = NDArray[np.float64]
# Trains a module on a dataset, in place. What it returns is not used.
Train = Callable[[nn.Module, Dataset[object], Settings], object]
Progress = Callable[[int], object]
# Noise that is as good as none; many libraries refuse 0.
NO_NOISE = 1e-7


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
        noise: of one step, over learning rate * noise multiplier * C / expected batch size; shape
            (R, parameters). Standard normal if all is right.
        noise_of_two: the same after two steps.
        parts: the parts of records in one step almost without noise, over learning rate * C /
            expected batch size: norms of clipped gradients, over C, of records that are in the
            batch; shape (R, N).
        parts_of_two: the same after two steps.
        norms: of the records' gradients before clipping, over C; shape (N,).
    """

    noise: Array
    noise_of_two: Array
    parts: Array
    parts_of_two: Array
    norms: Array


def measure(train: Train, plan: Plan, on_progress: Progress) -> Measurements:
    """Runs all trainings.

    Raises:
        InputError: if a training fails or does not change the module.
    """
    settings, count = plan.settings, plan.num_records
    unit = settings.learning_rate * settings.max_grad_norm / (settings.sample_rate * count)
    quiet, loud = replace(settings, noise_multiplier=NO_NOISE), settings.max_grad_norm
    kinds = [
        (silent_records(count), settings, 1),
        (silent_records(count), settings, 2),
        (loud_records(count, loud), quiet, 1),
        (loud_records(count, loud), quiet, 2),
    ]
    moved: list[Array] = []
    for kind, (records, wanted, num_steps) in enumerate(kinds):
        found = []
        for index in range(plan.num_trainings):
            run = kind * plan.num_trainings + index
            found.append(_moved(train, records, replace(wanted, num_steps=num_steps), plan, run))
            on_progress(1)
        moved.append(np.stack(found))
    noise_unit = unit * settings.noise_multiplier
    one, two = (updates.reshape(len(updates), -1) / noise_unit for updates in moved[:2])
    parts, parts_of_two = (np.sqrt((updates**2).sum(axis=(1, 2))) / unit for updates in moved[2:])
    norms = np.full(count, LARGE)
    norms[1::2] = SMALL
    return Measurements(one, two, parts, parts_of_two, norms)


def _moved(
    train: Train, records: Dataset[object], settings: Settings, plan: Plan, run: int
) -> Array:
    own = generator(seed=plan.seed, purpose=Purpose.MECHANISM_CHECK, index=run)
    seed = int(own.integers(2**31))
    seed_global_generators(seed)
    probe = Probe(plan.num_records)
    try:
        train(probe, records, replace(settings, seed=seed))
    except Exception as error:
        raise InputError(
            f"the training failed on a probe ({type(error).__name__}: {error}); it must train any"
            " module with two outputs on a dataset of vectors and labels, as its settings say"
        ) from error
    moved = probe.moved().cpu().numpy()
    if not np.isfinite(moved).all():
        raise InputError("the training of a probe has diverged: lower the learning rate")
    return moved
