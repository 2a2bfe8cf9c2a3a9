"""What trainings on probes did: the updates that all have, and other calls of the model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.checking.mechanism.probe import Array, Probe, ProbeRecords, by_column
from dpcanary.checking.mechanism.probe_runs import Settings
from dpcanary.checking.mechanism.trace import (
    Flat,
    OptimizerStep,
    Trace,
    append_changed,
    is_plain,
    replayed,
)

# Parts over C from which on a record was in a batch; float32 leaves less, and small records more.
PRESENT = 1e-4
# Columns that no record has moved without noise if by less than this, over that between steps.
_NO_NOISE = 1e-3
# Parameters are in the span of others if they are as close to it, over the length of a step.
_IN_SPAN = 0.01


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


def joined(
    traces: list[Trace], records: ProbeRecords, settings: Settings, *, by_sums: bool
) -> Trainings:
    """The updates of all trainings that all have."""
    by_gradients = not by_sums and all(
        trace.steps and all(not is_plain(step) and is_known(step) for step in trace.steps)
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

    What lies in the span of earlier parameters and gradients follows from these: averages of
    weights do.
    """
    after = replayed(steps, shapes)
    gaps = [b.astype(np.float64) - a for a, b in zip(after, states[1:], strict=True)]
    error = max(float(np.abs(gap).max()) for gap in gaps)
    unit = _usual_size([float(np.abs(b - a).max()) for a, b in pairwise(states)])
    if error <= _IN_SPAN * unit:
        return _ReplayError(0.0, error)
    rest = 0.0
    for count, gap in enumerate(gaps, start=1):
        # The span of the parameters after the gap has all that was added to them.
        gradients = [step.gradients for step in steps[:count]]
        basis = _basis([*states[:count], *after[:count]], gradients)
        rest = max(rest, float(np.abs(gap - basis @ (basis.T @ gap)).max()))
    return _ReplayError(error / unit, rest)


def _usual_size(moves: Sequence[float]) -> float:
    """The median of the moves that are not 0, as those of steps that are undone are."""
    return float(np.median([move for move in moves if move > 0] or [np.inf]))


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
    unit = _usual_size([float(np.linalg.norm(b - a)) for a, b in pairwise(states)])
    gaps = [state.astype(np.float64) - states[0] for state in called]
    return max(float(np.linalg.norm(gap - basis @ (basis.T @ gap))) for gap in gaps) / unit


def _basis(states: Sequence[Flat], gradients: Sequence[Flat]) -> Array:
    """Orthonormal columns that span the differences of parameters, and gradients."""
    first = states[0].astype(np.float64)
    rows = [state - first for state in states[1:]] + [own.astype(np.float64) for own in gradients]
    lengths = [float(np.linalg.norm(row)) for row in rows]
    columns = [row / size for row, size in zip(rows, lengths, strict=True) if size > 0]
    if not columns:
        return np.zeros((len(first), 0))
    left, sizes, _ = np.linalg.svd(np.stack(columns, axis=1), full_matrices=False)
    # What is left of the rounding of nearly equal rows would span anything.
    return left[:, sizes > 1e-6 * sizes[0]]


def is_known(step: Any) -> bool:
    """Whether the optimiser is one of PyTorch's own: its gradients are all that it is given."""
    return bool(step.optimizer.__module__.startswith("torch.optim."))
