"""How far a metagradient can be trusted away from where it was taken."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpcanary.checks import checked_real
from dpcanary.errors import InputError
from dpcanary.metagradients.reverse import Objective, metagradient
from dpcanary.metagradients.training import Training, trained


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

    Args:
        training: everything but the pixels.
        pixels: z, of all canaries, shape (m, ...).
        direction: d, shape (m, ...).
        step_size: h, > 0.
        objective: what is differentiated.
        memory_budget: bytes for the states of a training; see `metagradient`.

    Raises:
        InputError: if training diverges, or the shapes differ.
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


def _agreement(one: Tensor, other: Tensor, *, weights: Tensor) -> float:
    """Mean product of signs, weighted by absolute values.

    Raises:
        InputError: if all weights are 0.
    """
    total = weights.abs().sum()
    if not bool(total > 0):
        raise InputError(
            "the direction changes nothing: no canary that it moves is trained on, or its numbers"
            " are too small; choose another direction or a larger step_size"
        )
    return float((one.sign() * other.sign() * weights.abs()).sum() / total)
