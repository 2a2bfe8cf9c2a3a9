"""Exact derivatives of a function of the final model in the pixels of training records.

The way back through a training goes step by step, as in REPLAY (Engstrom et al., 2025, "Optimizing
ML training with metagradient descent"). A step is an update that is linear in the state and the
gradient, and a gradient of the batch's loss. The first is transposed by hand. The second takes one
product with second derivatives, by differentiating the gradient again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.checks import checked_count
from dpcanary.errors import InputError
from dpcanary.metagradients.descent import State
from dpcanary.metagradients.task import Task, reproducible_convolutions
from dpcanary.metagradients.training import Training


def planned_segments(num_steps: int, capacity: int | None) -> tuple[range, ...]:
    """Consecutive steps; the parameters at all steps of one segment are held at a time.

    Those of the last segment are kept on the way there. At the start of each earlier segment the
    whole state is kept, and its steps are done again when the way back reaches it. There are as
    few segments as fit. With the least capacity that is enough, about sqrt(8 x steps), there are
    about sqrt(steps / 2) of them.

    Args:
        num_steps: of the training.
        capacity: how many vectors of parameters fit into memory; None: all.

    Raises:
        InputError: if there are too few for any plan.

    Example:
        >>> planned_segments(10, 10)
        (range(0, 10),)
        >>> planned_segments(10, 7)
        (range(0, 5), range(5, 10))
    """
    length = num_steps if capacity is None else _longest(num_steps, capacity)
    if not length:
        needed = next(size for size in count(1) if _longest(num_steps, size))
        raise InputError(
            f"memory_budget holds {capacity} vectors of parameters; a way back through"
            f" {num_steps} steps needs at least {needed}: raise it, or train fewer steps"
        )
    # Only the first segment may be shorter: the last one is the one that costs nothing.
    starts = range(num_steps - length, -length, -length)
    return tuple(range(max(0, start), start + length) for start in reversed(starts))


def _longest(num_steps: int, capacity: int) -> int:
    """Steps of a segment if as few states as possible are kept; 0 if there is no way."""
    for num_kept in range(num_steps):
        length = capacity - 2 * num_kept  # a kept state is parameters and momentum
        if length <= 0:
            return 0
        if (num_kept + 1) * length >= num_steps:
            return min(length, num_steps)
    return 0


# Maps parameters, shape (P,), and pixels of all canaries, shape (m, ...), to one number.
Objective = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Metagradient:
    """An objective after training, and its derivative in the pixels of the canaries.

    Attributes:
        value: of the objective.
        gradient: shape (m, ...), through training and directly.
        parameters: after the last step, shape (P,).
        losses: mean loss of each step's batch before the step, in nats.
        num_replayed: steps that were done twice because their states were not kept.
    """

    value: float
    gradient: Tensor
    parameters: Tensor
    losses: tuple[float, ...]
    num_replayed: int


def metagradient(
    *,
    training: Training,
    pixels: Tensor,
    objective: Objective,
    memory_budget: int | None = None,
) -> Metagradient:
    """Trains, and differentiates an objective in the pixels of the canaries.

    The result is the same, bit for bit, whatever the memory.

    Args:
        training: everything but the pixels.
        pixels: of all canaries, shape (m, ...), whether they are trained on or not.
        objective: a differentiable function of the final parameters and of the pixels.
        memory_budget: bytes for the states of the training; None: all states are kept. A step's
            activations and about eight vectors of parameters come on top.

    Raises:
        InputError: if training diverges; or the derivative is not finite; or the module draws
            random numbers or is not reproducible; or the budget is too small.
    """
    pixels = training.task.pixels(pixels)
    segments = planned_segments(training.num_steps, _capacity(training, memory_budget))
    with reproducible_convolutions():
        past = _Past(training, pixels, segments)
        value, adjoint, gradient = _at_the_end(past.parameters, pixels, objective)
        for segment in reversed(segments):
            kept = past.parameters_of(segment)
            for step in reversed(segment):
                adjoint = _stepped_back(past, kept.pop(), adjoint, gradient, step)
    if not bool(gradient.isfinite().all()):
        raise InputError(
            "the metagradient is not finite: derivatives grow too fast on the way back; lower the"
            " learning rates, or train fewer steps"
        )
    replayed = training.num_steps - len(segments[-1])
    return Metagradient(value, gradient, past.parameters, tuple(past.losses), replayed)


def _capacity(training: Training, memory_budget: int | None) -> int | None:
    if memory_budget is None:
        return None
    checked_count("memory_budget", memory_budget)
    return memory_budget // (training.start.numel() * training.start.element_size())


class _Past:
    """A finished training, of which some states are kept.

    Vectors are kept one by one. In a common buffer they could lie at other addresses than those
    of the training, and sums that depend on the alignment would be rounded in another way.
    """

    def __init__(self, training: Training, pixels: Tensor, segments: tuple[range, ...]) -> None:
        """Trains."""
        self.training, self.pixels = training, pixels
        self.losses: list[float] = []
        self._starts: dict[int, State] = {}
        state = training.first_state()
        for segment in segments[:-1]:
            self._starts[segment.start] = state
            for step in segment:
                state = self._advanced(state, step)
        self._last = [state.parameters]
        for step in segments[-1]:
            state = self._advanced(state, step)
            self._last.append(state.parameters)
        training.check_end(state)
        self.parameters = self._last.pop()

    def _advanced(self, state: State, step: int) -> State:
        state, loss = self.training.advanced(state, self.pixels, step=step)
        self.losses.append(loss)
        return state

    def parameters_of(self, segment: range) -> list[Tensor]:
        """The parameters before each of the segment's steps; each segment is asked for once."""
        if segment.start not in self._starts:
            return self._last
        state = self._starts.pop(segment.start)
        kept = [state.parameters]
        for step in segment[:-1]:
            state, _ = self.training.advanced(state, self.pixels, step=step)
            kept.append(state.parameters)
        return kept


def _at_the_end(
    parameters: Tensor, pixels: Tensor, objective: Objective
) -> tuple[float, State, Tensor]:
    """The objective, and its derivatives in the final state and, directly, in the pixels."""
    leaves = parameters.detach().requires_grad_(), pixels.detach().requires_grad_()
    value = objective(*leaves)
    if value.numel() != 1 or not value.requires_grad:
        raise InputError(
            f"the objective gives a result of shape {tuple(value.shape)}; it must be one number"
            " that depends on the parameters or the pixels by differentiable operations"
        )
    parts = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    # A copy, since shares of the steps are added to it in place.
    direct = parts[1].clone(memory_format=torch.contiguous_format)
    return value.item(), State(parts[0], torch.zeros_like(parameters)), direct


def _stepped_back(
    past: _Past, parameters: Tensor, adjoint: State, gradient: Tensor, step: int
) -> State:
    """The derivative in the state before a step; adds the step's share to `gradient`."""
    training = past.training
    before, direction = training.descent.pulled_back(adjoint, step=step)
    own, share, loss = training.curvature(parameters, direction, past.pixels, step=step)
    if loss != past.losses[step]:
        raise InputError(
            f"step {step + 1} of {training.num_steps} had loss {past.losses[step]!r}, and {loss!r}"
            " when it was repeated: a layer draws random numbers, as dropout does, or an operation"
            " is not reproducible on this device; replace it"
        )
    if share is not None:
        gradient.index_add_(0, training.task.indices(training.batches[step].canaries), share)
    return State(before.parameters + own, before.momentum)


def loss_gap_objective(task: Task, inserted: NDArray[np.int64]) -> Objective:
    """Sum of the losses of canaries that are in, minus those that are out, in nats.

    It is equation 3 of Boglioni et al. (2025), which is minimised: then models have a low loss on
    what they were trained on, and a high one on what they were not.

    Args:
        task: holds the canaries' labels.
        inserted: indices of the canaries that are trained on.
    """
    signs = torch.full((len(task.canary_labels),), -1.0).to(task.features)
    signs[task.indices(inserted)] = 1.0

    def objective(parameters: Tensor, pixels: Tensor) -> Tensor:
        return (signs * task.canary_losses(parameters, pixels)).sum()

    return objective


def loss_gap(task: Task, parameters: Tensor, pixels: Tensor, inserted: NDArray[np.int64]) -> float:
    """Mean loss of the canaries that are out minus that of those that are in, in nats.

    With as many in as out, it is the objective times -2 / m.

    Args:
        task: holds the canaries' labels.
        parameters: of a trained model, shape (P,).
        pixels: of all canaries, shape (m, ...).
        inserted: indices of the canaries that were trained on.
    """
    with torch.no_grad():
        losses = task.canary_losses(parameters, pixels)
    is_in = torch.zeros_like(losses, dtype=torch.bool)
    is_in[task.indices(inserted)] = True
    return float(losses[~is_in].mean() - losses[is_in].mean())
