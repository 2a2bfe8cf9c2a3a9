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

from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.devices import reproducible_convolutions
from dpcanary.errors import InputError
from dpcanary.papers.boglioni.differentiable_training import State, Task, Training, trained


def planned_segments(num_steps: int, capacity: int | None) -> tuple[range, ...]:
    """Consecutive steps; the parameters at all steps of one segment are held at a time.

    Those of the last segment are kept on the way there. At the start of each earlier segment the
    whole state is kept, and its steps are done again when the way back reaches it. There are as
    few segments as fit into a memory of `capacity` vectors of parameters (None: all). With the
    least capacity that is enough, about sqrt(8 x steps), there are about sqrt(steps / 2) of them.

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
    """An objective after training, and its derivative in the pixels of the canaries."""

    value: float  # of the objective
    gradient: Tensor  # through training and directly, shape (m, ...)
    parameters: Tensor  # after the last step, shape (P,)
    losses: tuple[float, ...]  # mean loss of each step's batch before the step, in nats
    num_replayed: int  # steps that were done twice because their states were not kept


def metagradient(
    *, training: Training, pixels: Tensor, objective: Objective, memory_budget: int | None = None
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
    pixels, capacity = training.task.pixels(pixels), None
    if memory_budget is not None:
        vector = training.start.numel() * training.start.element_size()
        capacity = checked_count("memory_budget", memory_budget) // vector
    *earlier, last = planned_segments(training.num_steps, capacity)
    losses: list[float] = []
    with reproducible_convolutions():
        state, starts = training.first_state(), []
        for segment in earlier:
            starts.append(state)
            for step in segment:
                state, loss = training.advanced(state, pixels, step=step)
                losses.append(loss)
        # Vectors are kept one by one. In a common buffer they could lie at other addresses than
        # those of the training, and sums that depend on the alignment would be rounded differently.
        kept = []
        for step in last:
            kept.append(state.parameters)
            state, loss = training.advanced(state, pixels, step=step)
            losses.append(loss)
        parameters = state.parameters
        del state  # its momentum takes memory
        value, adjoint, gradient = _at_the_end(parameters, pixels, objective)
        for segment in (last, *reversed(earlier)):
            kept = kept or _replayed(training, pixels, starts.pop(), segment)
            for step in reversed(segment):
                adjoint, share = _stepped_back(
                    training, pixels, kept.pop(), adjoint, step=step, loss=losses[step]
                )
                if share is not None:
                    canaries = training.task.indices(training.batches[step].canaries)
                    gradient.index_add_(0, canaries, share)
    if not bool(gradient.isfinite().all()):
        raise InputError(
            "the metagradient is not finite: derivatives grow too fast on the way back; lower the"
            " learning rates, or train fewer steps"
        )
    num_replayed = training.num_steps - len(last)
    return Metagradient(value, gradient, parameters, tuple(losses), num_replayed)


def _replayed(training: Training, pixels: Tensor, state: State, segment: range) -> list[Tensor]:
    """The parameters before each of the segment's steps, from the state before the first one."""
    kept = [state.parameters]
    for step in segment[:-1]:
        state, _ = training.advanced(state, pixels, step=step)
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
    training: Training,
    pixels: Tensor,
    parameters: Tensor,
    adjoint: State,
    *,
    step: int,
    loss: float,
) -> tuple[State, Tensor | None]:
    """The derivatives in the state before a step, and in the pixels of the step's canaries.

    `parameters` are those before the step, and `loss` is the one that the step had in training.
    """
    before, direction = training.descent.pulled_back(adjoint, step=step)
    second, share, repeated = training.curvature(parameters, direction, pixels, step=step)
    if repeated != loss:
        raise InputError(
            f"step {step + 1} of {training.num_steps} had loss {loss!r}, and {repeated!r} when it"
            " was repeated: a layer draws random numbers, as dropout does, or an operation is not"
            " reproducible on this device; replace it"
        )
    return State(before.parameters + second, before.momentum), share


def loss_gap_objective(task: Task, inserted: NDArray[np.int64]) -> Objective:
    """Sum of the losses of canaries that are in, minus those that are out, in nats.

    It is equation 3 of Boglioni et al. (2025), which is minimised: then models have a low loss on
    what they were trained on, and a high one on what they were not. `inserted` are the indices of
    the canaries that are trained on.
    """
    signs = torch.full((len(task.canary_labels),), -1.0).to(task.features)
    signs[task.indices(inserted)] = 1.0

    def objective(parameters: Tensor, pixels: Tensor) -> Tensor:
        return (signs * task.losses(parameters, pixels, task.canary_labels)).sum()

    return objective


@dataclass(frozen=True)
class Smoothness:
    """Agreement of metagradients and models at pixels z, z + h d and z + 2 h d.

    Agreements are 1 where training is smooth at this scale, and about 0 where it is chaotic.

    Attributes:
        gradient_cosine: of the metagradients at z and z + h d.
        gradient_signs: mean product of their signs, weighted by the size of that at z: what a
            signed step sees.
        parameter_signs: metasmoothness (Engstrom et al., 2025, Definition 2): mean product of the
            signs of theta(z + h d) - theta(z) and theta(z + 2 h d) - theta(z + h d), weighted by
            the size of theta(z + 2 h d) - theta(z).
        predicted_change: of the objective from z to z + h d, by the metagradient at z.
        change: the actual one.
    """

    gradient_cosine: float
    gradient_signs: float
    parameter_signs: float
    predicted_change: float
    change: float


def metasmoothness(
    *,
    training: Training,
    pixels: Tensor,
    direction: Tensor,
    step_size: float,
    objective: Objective,
    memory_budget: int | None = None,
) -> Smoothness:
    """Compares a training with two that see slightly other pixels; takes two metagradients.

    The pixels are z, the direction d, both of shape (m, ...), and the step size h; the other
    arguments are those of `metagradient`.

    Raises:
        InputError: if training diverges, the shapes differ, or the direction changes nothing.
    """
    checked_real("step_size", step_size)
    pixels, direction = training.task.pixels(pixels), training.task.pixels(direction)
    here, there = (
        metagradient(
            training=training, pixels=place, objective=objective, memory_budget=memory_budget
        )
        for place in (pixels, pixels.add(direction, alpha=step_size))
    )
    beyond = trained(training, pixels.add(direction, alpha=2 * step_size))
    first, second = there.parameters - here.parameters, beyond - there.parameters
    return Smoothness(
        float(torch.cosine_similarity(here.gradient.flatten(), there.gradient.flatten(), dim=0)),
        _agreement(here.gradient, there.gradient, weights=here.gradient),
        _agreement(first, second, weights=first + second),
        step_size * float((here.gradient * direction).sum()),
        there.value - here.value,
    )


def _agreement(first: Tensor, other: Tensor, *, weights: Tensor) -> float:
    """Mean product of signs, weighted by absolute values."""
    total = weights.abs().sum()
    if not bool(total > 0):
        raise InputError(
            "the direction changes nothing: no canary that it moves is trained on, or its numbers"
            " are too small; choose another direction or a larger step_size"
        )
    return float((first.sign() * other.sign() * weights.abs()).sum() / total)
