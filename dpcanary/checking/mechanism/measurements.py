"""Updates of short trainings on the probes, in the units that the accountant assumes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from math import sqrt
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.checking.mechanism.noisy_sums import SumsMode, steps_of
from dpcanary.checking.mechanism.probe import (
    Array,
    Probe,
    ProbeRecords,
    by_column,
    dense_records,
    probe_records,
)
from dpcanary.checking.mechanism.trace import (
    Flat,
    OptimizerStep,
    Trace,
    append_changed,
    is_plain,
    replayed,
)
from dpcanary.core.global_generators import seed_global_generators
from dpcanary.core.randomness import generator
from dpcanary.errors import InputError


class NoNoisySumsError(Exception):
    """A loop computes no noisy sum for each step and parameter, as far as `SumsMode` sees."""


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    MECHANISM_CHECK = 23  # the seeds of trainings on probes
    BATCH_SIZES = 24  # drawn no more: the law of batch sizes is computed; the number stays taken
    REPLAYS = 31  # the seeds of trainings that get noisy sums of others


@dataclass(frozen=True)
class Settings:
    """What a training loop is asked to do.

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


# Trains a module of PyTorch on a dataset, in place. A generator is run to its end, and what it
# yields is not used: it says that a step is done. What is returned is not used. In jax, a generator
# that yields the parameters after each step.
Train = Callable[[Any, Any, Settings], object]
# Trains a probe once.
Run = Callable[[Settings], Trace]
# As good as no noise; many libraries refuse 0.
QUIET = 1e-7
# The expected batch size of the small datasets, whose batches are often empty, and the largest
# sample rate at which they are.
SMALL_BATCH, _MOST_RATE = 2, 0.9
# Parts over C from which on a record was in a batch; float32 leaves less, and small records more.
PRESENT = 1e-4
# The largest value of a record with many components is above this if it was in a batch.
PRESENT_IN_DENSE = 5e-4
# Columns that no record has moved without noise if by less than this, over that between steps.
_NO_NOISE = 1e-3
# An optimiser of PyTorch moves parameters by so much of what SGD with a gradient of norm C would.
_SLOW = 0.1
# Trainings on records with many components: how many, of how many records and components, and at
# which sample rate, at which laws of batch sizes differ most.
_NUM_DENSE, NUM_DENSE_RECORDS, _WIDTH, DENSE_RATE = 5, 20, 32, 0.5
# Parameters are in the span of others if they are as close to it, over the length of a step.
_IN_SPAN = 0.01
# Trainings in jax after which what was compiled is dropped.
_MOST_COMPILED = 200


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
class Trainings:
    """What R trainings of one kind did on N records.

    Attributes:
        records: that they were trained on.
        num_updates: that were seen of each training, shape (R,).
        before: parameters before each of T updates, by column; shape (R, T, 8, columns).
        moved: updates over learning rate * C / expected batch size, in the shape of `before`.
        in_all: the updates of a whole training added up, shape (R, 8, columns).
        replay_error: of the parameters, over the same unit, if an optimiser of PyTorch moves them
            by more than the gradient; else 0. What follows from other parameters, as averages do,
            is left out.
        optimizer: its name; empty if updates are differences of parameters.
        stray: distance of the parameters with which the module was called from all that follow from
            those before the steps, over the length of a step.
        num_without_noise: the most records whose gradients, without any noise, lead from parameters
            between steps to others with which the module was called.
        by_yields: whether the loop says when a step is done. It may then call the module at other
            parameters as well, as of a second model that it trains.
        is_averaged: whether the parameters are set to averages of those of several steps.
        norm_factors: of the gradients that are clipped, over those of all tensors and over C; shape
            (T,). 1 unless tensors are frozen or C changes (`undone_postprocessing`).
    """

    records: ProbeRecords
    num_updates: NDArray[np.int64]
    before: Array
    moved: Array
    in_all: Array
    replay_error: float
    optimizer: str
    stray: float = 0.0
    num_without_noise: int = 0
    by_yields: bool = False
    is_averaged: bool = False
    norm_factors: Array | None = None

    def with_updates(self, moved: Array, **more: Any) -> "Trainings":
        """These trainings with other updates, of the first steps or of all."""
        before = self.before[:, : moved.shape[1]]
        return replace(self, moved=moved, in_all=moved.sum(axis=1), before=before, **more)

    @cached_property
    def norms(self) -> Array:
        """Norms of the records' gradients over C, before each update; shape (R, T, N)."""
        norms = self.norms_of_all
        return norms if self.norm_factors is None else norms * self.norm_factors[:, None]

    @cached_property
    def norms_of_all(self) -> Array:
        """Norms over all tensors, by the C of the settings, whatever is clipped in a step."""
        return self.records.norms_at(self.before)

    @cached_property
    def lengths(self) -> Array:
        """Lengths of the updates, shape (R, T)."""
        lengths: Array = np.sqrt((self.moved**2).sum(axis=(2, 3)))
        return lengths

    @cached_property
    def parts(self) -> Array:
        """Parts of the records in each update, over C, by tensor; shape (R, T, 5, N)."""
        return self.records.parts(self.moved)[0]

    @cached_property
    def across(self) -> Array:
        """What moved where the records' gradients are 0, in their columns; shape (R, T, 4, N)."""
        return self.records.parts(self.moved)[1]

    @cached_property
    def silent(self) -> Array:
        """What moved in columns that no record has; shape (R, T, 8, silent)."""
        return self.moved[..., len(self.records.sizes) :]

    @cached_property
    def drawn(self) -> NDArray[np.bool_]:
        """Which records were in a batch, shape (R, T, N); for trainings almost without noise."""
        drawn: NDArray[np.bool_] = np.abs(self.parts).max(axis=2) > PRESENT
        return drawn


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
    if not trace.steps or not all(_is_known(step) and not is_plain(step) for step in trace.steps):
        return plan.settings
    moved = max(float(np.abs(b - a).max()) for a, b in pairwise(trace.states))
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


def records_of(settings: Settings, count: int) -> ProbeRecords:
    """So many records for trainings at these settings."""
    return probe_records(
        num_records=count,
        max_grad_norm=settings.max_grad_norm,
        step=settings.learning_rate * settings.max_grad_norm / (settings.sample_rate * count),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """On so small modules, a second thread that waits for a core takes far longer than it saves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
    return _joined(traces, records, settings, by_sums=plan.by_sums)


def trained(run: Run, settings: Settings) -> Trace:
    """Trains a probe; raises an InputError if that fails or diverges."""
    seed_global_generators(settings.seed)
    try:
        trace = run(settings)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the training failed on a probe ({type(error).__name__}: {error}); it must train any"
            " module with two outputs, such as one with a bias and an embedding, on a dataset of"
            " vectors and labels, as its settings say, also if a batch is empty"
        ) from error
    if not np.isfinite(trace.states[-1]).all():
        raise InputError("the training of a probe has diverged: lower the learning rate")
    return trace


@contextmanager
def _with_torch(train: Train, records: ProbeRecords) -> Iterator[Run]:
    dataset = records.dataset()

    def run(settings: Settings) -> Trace:
        trace = Trace()
        probe = Probe(records, trace)
        _train_probe(train, probe, dataset, settings)
        return trace

    yield run


def _train_probe(train: Train, probe: Probe, dataset: Any, settings: Settings) -> None:
    """Trains once; the probe's trace then has what was seen."""
    trace, parameters = probe.trace, [*probe.parameters()]
    trace.keep(parameters)
    trace.last_called = trace.states[0]
    with trace.of(probe):
        steps = train(probe, dataset, settings)
        if isinstance(steps, GeneratorType):
            trace.by_yields = True
            for _ in steps:
                trace.keep(parameters)
    trace.end(parameters)


@contextmanager
def with_sums(train: Train, records: ProbeRecords, sums: Sequence[Tensor] = ()) -> Iterator[Run]:
    """Trains probes and keeps their noisy sums; those that are given take the loop's place."""
    dataset = records.dataset()

    def run(settings: Settings) -> Trace:
        trace = Trace()
        probe = Probe(records, trace)
        shapes = [parameter.shape for parameter in probe.parameters()]
        with SumsMode(shapes, lambda: trace.last_called, sums) as mode:
            _train_probe(train, probe, dataset, settings)
        trace.sums = [own.values for own in mode.seen]
        trace.noisy_steps = steps_of(mode.seen, shapes)
        return trace

    yield run


def _runner(plan: Plan) -> Callable[[Train, ProbeRecords], AbstractContextManager[Run]]:
    return with_sums if plan.by_sums else FRAMEWORKS[plan.framework]


@contextmanager
def _with_jax(train: Train, records: ProbeRecords) -> Iterator[Run]:
    from dpcanary.checking.mechanism.jax_probe import JaxProbe, forget_compiled

    # One probe for all trainings: what is compiled for it can be used again.
    probe, dataset = JaxProbe(records), records.arrays()

    count = 0

    def run(settings: Settings) -> Trace:
        nonlocal count
        count += 1
        if count % _MOST_COMPILED == 0:
            forget_compiled()
        trace = Trace(by_yields=True)
        trace.keep(probe.tensors(probe.parameters))
        steps = train(probe, dataset, settings)
        if not isinstance(steps, Iterator):
            raise InputError("in jax, it must be a generator that yields the parameters")
        for parameters in steps:
            trace.keep(probe.tensors(parameters))
        return trace

    try:
        yield run
    finally:
        forget_compiled()


# What trains a probe on records, by what the loop is written in.
FRAMEWORKS = {"torch": _with_torch, "jax": _with_jax}


def _joined(
    traces: list[Trace], records: ProbeRecords, settings: Settings, *, by_sums: bool
) -> Trainings:
    """The updates of all trainings that all have."""
    by_gradients = not by_sums and all(
        trace.steps and all(not is_plain(step) and _is_known(step) for step in trace.steps)
        for trace in traces
    )
    shapes = {
        name: parameter.shape for name, parameter in Probe(records, Trace()).named_parameters()
    }
    moved_of, before_of, replay_error, stray = [], [], 0.0, 0.0
    is_averaged, num_without_noise = False, 0
    for trace in traces:
        if by_sums:
            assert trace.noisy_steps is not None
            before = [step.state for step in trace.noisy_steps]
            moved_of.append([-step.values.astype(np.float64) for step in trace.noisy_steps])
            before_of.append(before)
            continue
        if by_gradients:
            steps = [step for step in trace.steps if step.gradients.any()]
            before = [step.state for step in steps]
            moved_of.append([-step.gradients.astype(np.float64) for step in steps])
            states = [*(step.state for step in trace.steps), trace.states[-1]]
            error = _replay_error(trace.steps, states, shapes)
            is_averaged |= error.before > _IN_SPAN
            replay_error = max(replay_error, error.after / records.step)
        else:
            states = _between_steps(trace)
            wide = [state.astype(np.float64) for state in states]
            before = states[:-1]
            moved_of.append([b - a for a, b in pairwise(wide)])
        called = _called_elsewhere(trace, states)
        stray = max(stray, _stray(trace, states, called))
        numbers = moved_without_noise(called, states, records)
        num_without_noise = max(num_without_noise, *(number or 0 for number in numbers), 0)
        before_of.append(before)
    unit = records.step / settings.learning_rate if by_gradients or by_sums else records.step
    num_updates = np.array([len(moved) for moved in moved_of])
    common = int(min(num_updates.min(), settings.num_steps))
    columns = records.num_columns

    def stacked(flat: list[list[Any]]) -> Array:
        size = len(records.start.ravel())
        rows = [np.stack(own[:common]) if common else np.empty((0, size)) for own in flat]
        return by_column(np.stack(rows).astype(np.float64), columns)

    if by_sums:
        unit = _unit_of_sums(stacked(moved_of), records, settings)
    in_all = [
        np.sum(moved, axis=0) if moved else np.zeros(records.start.size) for moved in moved_of
    ]
    return Trainings(
        records=records,
        num_updates=num_updates,
        before=stacked(before_of),
        moved=stacked(moved_of) / unit,
        in_all=by_column(np.stack(in_all), columns) / unit,
        replay_error=replay_error,
        optimizer=traces[0].steps[0].optimizer.__name__ if by_gradients else "",
        stray=stray,
        num_without_noise=num_without_noise,
        by_yields=any(trace.by_yields for trace in traces),
        is_averaged=is_averaged,
    )


def _unit_of_sums(sums: Array, records: ProbeRecords, settings: Settings) -> float:
    """C, or C over the expected batch size if noise is added to means: by the noise's scale."""
    limit, mean = settings.max_grad_norm, records.step / settings.learning_rate
    silent = sums[..., len(records.sizes) * records.width :]
    scale = sqrt(float((silent**2).mean())) / settings.noise_multiplier
    return limit if scale > sqrt(limit * mean) else mean


def _between_steps(trace: Trace) -> list[Flat]:
    """The parameters between steps: before those of an optimiser if gradients are taken elsewhere.

    If all calls are at parameters before such steps, the calls show more: two optimisers of one
    model make one step.
    """
    at_steps = {step.state.tobytes() for step in trace.steps}
    if trace.by_yields or len(at_steps) < 2 or all(s.tobytes() in at_steps for s in trace.called):
        return trace.states
    states: list[Flat] = []
    for state in [*(step.state for step in trace.steps), trace.states[-1]]:
        append_changed(states, state)
    return states


class _ReplayError(NamedTuple):
    """Traces of parameters after an optimiser's steps, before and after averages are taken out."""

    before: float
    after: float


def _replay_error(
    steps: Sequence[OptimizerStep], states: Sequence[Flat], shapes: dict[str, torch.Size]
) -> _ReplayError:
    """How far parameters are from where the optimiser leads from those before each step.

    What lies in the span of parameters and gradients follows from these: averages of weights do.
    """
    after = replayed(steps, shapes)
    gaps = [b.astype(np.float64) - a for a, b in zip(after, states[1:], strict=True)]
    error = max(float(np.abs(gap).max()) for gap in gaps)
    unit = float(np.median([np.abs(b - a).max() for a, b in pairwise(states)]))
    if error <= _IN_SPAN * unit:
        return _ReplayError(0.0, error)
    basis = _basis([*states, *after], [step.gradients for step in steps])
    rest = [gap - basis @ (basis.T @ gap) for gap in gaps]
    return _ReplayError(error / unit, max(float(np.abs(gap).max()) for gap in rest))


def _called_elsewhere(trace: Trace, states: Sequence[Flat]) -> list[Flat]:
    """Parameters of calls in training that are not those between steps."""
    if len(states) < 3 or len(trace.called) < 2:
        return []
    state_bytes = {state.tobytes() for state in states}
    return [state for state in trace.called if state.tobytes() not in state_bytes]


def moved_without_noise(
    called: Sequence[Flat], states: Sequence[Flat], records: ProbeRecords
) -> list[int | None]:
    """How many records' columns lead from states to each call; None if other columns do as well.

    Noise moves the columns of all records, and those that no record has.
    """
    if not called or len(states) < 2:
        return [None] * len(called)
    count = len(records.sizes)
    between = by_column(np.stack(states).astype(np.float64), records.num_columns)
    noise = np.median(np.linalg.norm(np.diff(between[..., count:], axis=0), axis=(1, 2)))
    numbers: list[int | None] = []
    for state in called:
        gaps = by_column(state.astype(np.float64), records.num_columns) - between
        sizes = np.linalg.norm(gaps[..., count:], axis=(1, 2))
        nearest = int(sizes.argmin())
        moved = np.abs(gaps[nearest, :, :count]).max(axis=0) > PRESENT * records.step
        numbers.append(int(moved.sum()) if sizes[nearest] < _NO_NOISE * noise else None)
    return numbers


def _stray(trace: Trace, states: Sequence[Flat], called: Sequence[Flat]) -> float:
    """How far such calls are from parameters that follow from those before the steps."""
    if not called:
        return 0.0
    basis = _basis(states, [step.gradients for step in trace.steps])
    unit = float(np.median([np.linalg.norm(b - a) for a, b in pairwise(states)]))
    gaps = [state.astype(np.float64) - states[0] for state in called]
    return max(float(np.linalg.norm(gap - basis @ (basis.T @ gap))) for gap in gaps) / unit


def _basis(states: Sequence[Flat], gradients: Sequence[Flat]) -> Array:
    """Orthonormal columns that span the differences of parameters, and gradients."""
    first = states[0].astype(np.float64)
    rows = [state - first for state in states[1:]] + [own.astype(np.float64) for own in gradients]
    lengths = [float(np.linalg.norm(row)) for row in rows]
    columns = np.stack(
        [row / size for row, size in zip(rows, lengths, strict=True) if size > 0], axis=1
    )
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    # What is left of the rounding of nearly equal rows would span anything.
    return left[:, sizes > 1e-6 * sizes[0]]


def _is_known(step: Any) -> bool:
    """Whether the optimiser is one of PyTorch's own: its gradients are all that it is given."""
    return bool(step.optimizer.__module__.startswith("torch.optim."))
