"""Updates of short trainings on the probes, in the units that the accountant assumes."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

import numpy as np

from dpcanary.checking.mechanism.probe import ProbeRecords, dense_records
from dpcanary.checking.mechanism.probe_runs import (
    FRAMEWORKS,
    QUIET,
    Run,
    Settings,
    Train,
    one_thread,
    records_of,
    trained,
    with_sums,
)
from dpcanary.checking.mechanism.probe_trainings import Trainings, is_known, joined
from dpcanary.checking.mechanism.trace import is_plain
from dpcanary.core.randomness import generator
from dpcanary.errors import InputError


class NoNoisySumsError(Exception):
    """A loop computes no noisy sum for each step and parameter, as far as `SumsMode` sees."""


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    MECHANISM_CHECK = 23  # the seeds of trainings on probes
    BATCH_SIZES = 24  # drawn no more: the law of batch sizes is computed; the number stays taken
    REPLAYS = 31  # the seeds of trainings that get noisy sums of others


# The largest value of a record with many components is above this if it was in a batch.
PRESENT_IN_DENSE = 5e-4
# The expected batch size of the small datasets, whose batches are often empty, and the largest
# sample rate at which they are.
SMALL_BATCH, _MOST_RATE = 2, 0.9
# An optimiser of PyTorch moves parameters by so much of what SGD with a gradient of norm C would.
_SLOW = 0.1
# Trainings on records with many components: how many, of how many records and components, and at
# which sample rate, at which laws of batch sizes differ most.
_NUM_DENSE, NUM_DENSE_RECORDS, _WIDTH, DENSE_RATE = 5, 20, 32, 0.5


@dataclass(frozen=True)
class Plan:
    """What is measured: so many trainings of each kind, of so many steps.

    The noise and the seed of the settings are replaced. The framework is one of `FRAMEWORKS`. With
    `by_sums`, updates are the noisy sums that a loop in PyTorch computes, whatever follows them.
    """

    settings: Settings
    num_records: int
    num_trainings: int
    seed: int
    framework: str = "torch"
    by_sums: bool = False

    @property
    def num_small(self) -> int:
        """Records of the small datasets; 0 if there are none, as no batch would be empty."""
        rate = self.settings.sample_rate
        return round(SMALL_BATCH / rate) if rate <= _MOST_RATE else 0

    @property
    def total(self) -> int:
        """Trainings of all kinds."""
        return (4 if self.num_small else 2) * self.num_trainings + _NUM_DENSE


@dataclass(frozen=True)
class Measurements:
    """All trainings.

    Attributes:
        settings: that were asked for.
        quiet: almost without noise.
        noisy: with the noise of the settings, on the same records. It is in units of C, too.
        small_quiet: trainings without noise on few records: many batches are empty; or None.
        small_noisy: trainings with noise on few records, or None.
        failed: what such a small training raised.
        filter: of noisy gradients, which was undone (`undone_postprocessing`), in words; empty if
            none.
        weight_decay: which was undone as well, over the learning rate.
        dense: trainings almost without noise, on few records of many components.
        frozen: tensors that are not trained in some steps, in words.
        limits: the smallest and the largest C of a step over that of the settings.
        unclear: what is done with noisy gradients that hides properties; in words, with the names
            of these.
        by_sums: whether updates are noisy sums, of which the parameters are a function
            (`postprocessing_replay`).
    """

    settings: Settings
    quiet: Trainings
    noisy: Trainings
    small_quiet: Trainings | None
    small_noisy: Trainings | None
    failed: str = ""
    filter: str = ""
    weight_decay: float = 0.0
    dense: Trainings | None = None
    frozen: str = ""
    limits: tuple[float, float] = (1.0, 1.0)
    unclear: tuple[tuple[str, frozenset[str]], ...] = ()
    by_sums: bool = False

    @property
    def num_updates(self) -> int:
        """Updates that were seen of every training with all records."""
        return int(min(self.quiet.moved.shape[1], self.noisy.moved.shape[1]))


def measure(train: Train, plan: Plan, on_progress: Callable[[int], object]) -> Measurements:
    """Runs all trainings; raises an InputError if one fails or diverges."""
    if not plan.by_sums:
        plan = replace(plan, settings=_slow_enough(train, plan))
    settings = plan.settings
    quiet_settings = replace(settings, noise_multiplier=QUIET)
    trainings_by_kind: list[Trainings | None] = []
    failed = ""
    with one_thread():
        for kind in range(4):
            is_small, kind_settings = kind >= 2, (settings if kind % 2 else quiet_settings)
            count = plan.num_small if is_small else plan.num_records
            if not count or failed:
                trainings_by_kind.append(None)
                continue
            records = records_of(kind_settings, count)
            try:
                trainings_by_kind.append(
                    _trainings(train, records, kind_settings, plan, kind, on_progress)
                )
            except InputError as error:
                if not is_small:
                    raise
                failed = str(error)
                trainings_by_kind.append(None)
        dense = _dense(train, plan, quiet_settings, on_progress)
    quiet, noisy, small_quiet, small_noisy = trainings_by_kind
    assert quiet is not None
    assert noisy is not None
    return Measurements(
        settings, quiet, noisy, small_quiet, small_noisy, failed, dense=dense, by_sums=plan.by_sums
    )


def _dense(
    train: Train, plan: Plan, settings: Settings, on_progress: Callable[[int], object]
) -> Trainings:
    """Trainings on records whose gradients have many values that are not 0."""
    settings = replace(settings, sample_rate=max(DENSE_RATE, settings.sample_rate))
    step = settings.learning_rate * settings.max_grad_norm
    records = dense_records(
        num_records=NUM_DENSE_RECORDS,
        width=_WIDTH,
        max_grad_norm=settings.max_grad_norm,
        step=step / (settings.sample_rate * NUM_DENSE_RECORDS),
    )
    fewer = replace(plan, num_trainings=_NUM_DENSE, seed=plan.seed)
    return _trainings(train, records, settings, fewer, 4, on_progress, plan.num_trainings)


def _slow_enough(train: Train, plan: Plan) -> Settings:
    """The settings, with a learning rate that suits the loop's optimiser.

    Adam and its like move parameters by the learning rate, however small gradients are. What they
    are given does not depend on it, so it is chosen for the probe.
    """
    settings = replace(plan.settings, noise_multiplier=QUIET, num_steps=2, seed=plan.seed)
    records = records_of(settings, plan.num_records)
    with one_thread(), FRAMEWORKS[plan.framework](train, records) as run:
        trace = trained(run, settings)
    if not trace.steps or not all(is_known(step) and not is_plain(step) for step in trace.steps):
        return plan.settings
    moved = max((float(np.abs(b - a).max()) for a, b in pairwise(trace.states)), default=0.0)
    if not moved:
        return plan.settings
    slower = min(1.0, _SLOW * records.step / moved)
    chosen = replace(settings, learning_rate=settings.learning_rate * slower)
    if slower < _SLOW:
        # Else the probe's gradients would vanish, and look as if their records were in no batch.
        with one_thread(), FRAMEWORKS[plan.framework](train, records) as run:
            states = trained(run, chosen).states
        again = max((float(np.abs(b - a).max()) for a, b in pairwise(states)), default=0.0)
        if again > moved / 2:
            raise InputError(
                f"the optimizer moves parameters of the probe by {again:.2g} in a step, whatever"
                " settings.learning_rate is, so its gradients vanish and nothing could be judged:"
                " let the loop take settings.learning_rate"
            )
    return replace(plan.settings, learning_rate=chosen.learning_rate)


def _trainings(
    train: Train,
    records: ProbeRecords,
    settings: Settings,
    plan: Plan,
    kind: int,
    on_progress: Callable[[int], object],
    num_of_a_kind: int | None = None,
) -> Trainings:
    traces = []
    with _runner(plan)(train, records) as run:
        for index in range(plan.num_trainings):
            draws = generator(
                seed=plan.seed,
                purpose=Purpose.MECHANISM_CHECK,
                index=kind * (num_of_a_kind or plan.num_trainings) + index,
            )
            seed = int(draws.integers(2**31))
            trace = trained(run, replace(settings, seed=seed))
            if plan.by_sums and not trace.noisy_steps:
                raise NoNoisySumsError
            traces.append(trace)
            on_progress(1)
    return joined(traces, records, settings, by_sums=plan.by_sums)


def _runner(plan: Plan) -> Callable[[Train, ProbeRecords], AbstractContextManager[Run]]:
    return with_sums if plan.by_sums else FRAMEWORKS[plan.framework]
