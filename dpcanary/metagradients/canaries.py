"""Canaries by metagradient descent (Boglioni et al., 2025, Algorithm 5)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpcanary.checks import checked_count, checked_real
from dpcanary.errors import InputError
from dpcanary.metagradients.descent import Descent
from dpcanary.metagradients.reverse import loss_gap_objective, metagradient
from dpcanary.metagradients.settings import Purpose
from dpcanary.metagradients.task import Task, shuffled_batches, task_of
from dpcanary.metagradients.training import Training
from dpcanary.randomness import derived_seed, generator
from dpcanary.records import Records
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.settings import Initialisation


@dataclass(frozen=True)
class Draw:
    """A training on a random half of the canaries.

    Attributes:
        training: the training.
        inserted: indices of the canaries that are trained on, ascending, shape (m / 2,).
    """

    training: Training
    inserted: NDArray[np.int64]


def drawn(task: Task, *, descent: Descent, batch_size: int, seed: int, index: int) -> Draw:
    """The draw of an index; draws of different indices or seeds are independent.

    Args:
        task: what is learned.
        descent: the optimiser.
        batch_size: records and canaries of each batch.
        seed: the canaries' seed. Runs of an audit with the same seed start elsewhere.
        index: of the metastep, >= 0.

    Raises:
        InputError: if the number of canaries is odd, or batches are too large.
    """
    num_canaries = len(task.canary_labels)
    if num_canaries % 2:
        raise InputError(f"{num_canaries} canaries cannot be split into halves; add or remove one")
    own = derived_seed(seed=seed, name="metagradients")
    splits = generator(seed=own, purpose=Purpose.METAGRADIENT_SPLITS, index=index)
    inserted = np.sort(splits.permutation(num_canaries)[: num_canaries // 2])
    batches = shuffled_batches(
        num_records=len(task.labels),
        inserted=inserted,
        batch_size=batch_size,
        num_steps=descent.num_steps,
        stream=generator(seed=own, purpose=Purpose.METAGRADIENT_ORDERS, index=index),
    )
    starts = initial_parameters(task.module, Initialisation.PER_RUN, seed=own, runs=[index])
    return Draw(Training(task, starts[0], batches, descent), inserted)


@dataclass(frozen=True)
class Metastep:
    """What a metastep found before it changed the pixels.

    Attributes:
        index: 0 for the first.
        loss_gap: mean loss of the canaries that were out minus that of those that were in, in
            nats. Each metastep has another split and start, so single ones differ by chance.
        last_loss: mean loss of the last batch, in nats.
        num_replayed: steps that were done twice because their states were not kept.
    """

    index: int
    loss_gap: float
    last_loss: float
    num_replayed: int


@dataclass(frozen=True)
class OptimisedCanaries:
    """Canaries after metagradient descent.

    Attributes:
        canaries: with the labels that were given.
        metasteps: in their order.
    """

    canaries: Records
    metasteps: tuple[Metastep, ...]


def optimise_canaries(
    *,
    module: nn.Module,
    records: Records,
    canaries: Records,
    descent: Descent,
    batch_size: int,
    step_size: float,
    lower: float | NDArray[Any],
    upper: float | NDArray[Any],
    num_metasteps: int = 50,
    seed: int = 0,
    device: str | torch.device = "cpu",
    memory_budget: int | None = None,
    progress: Callable[[Metastep], None] | None = None,
) -> OptimisedCanaries:
    """Changes pixels so that models tell which canaries they were trained on.

    Every metastep draws which half of the canaries is in, where training starts and the order of
    batches. It trains without privacy, and moves every pixel by `step_size` against the sign of
    its metagradient. The paper leaves step and number of metasteps open; signs are our choice.

    Args:
        module: maps features (n, ...) to logits (n, K); see `task_of`.
        records: other than canaries.
        canaries: where the descent starts; their number is even.
        descent: the optimiser of the models.
        batch_size: records and canaries of each batch.
        step_size: of a metastep, in the units of the features.
        lower: least valid feature, a number or an array that broadcasts against a record.
        upper: greatest valid feature, likewise.
        num_metasteps: how many.
        seed: of all draws.
        device: where to compute.
        memory_budget: bytes for the states of a training; see `metagradient`.
        progress: called after every metastep.

    Raises:
        InputError: if an argument is not valid, canaries start outside the limits, or training
            diverges.
    """
    checked_count("num_metasteps", num_metasteps)
    checked_real("step_size", step_size)
    task = task_of(module=module, records=records, canary_labels=canaries.labels, device=device)
    pixels = task.pixels(canaries.features)
    limits = _limits(pixels, lower, upper)
    metasteps = []
    for index in range(num_metasteps):
        draw = drawn(task, descent=descent, batch_size=batch_size, seed=seed, index=index)
        found = metagradient(
            training=draw.training,
            pixels=pixels,
            objective=loss_gap_objective(task, draw.inserted),
            memory_budget=memory_budget,
        )
        gap = -found.value / len(draw.inserted)
        metasteps.append(Metastep(index, gap, found.losses[-1], found.num_replayed))
        pixels = pixels.sub(found.gradient.sign(), alpha=step_size).clamp(*limits)
        if progress:
            progress(metasteps[-1])
    return OptimisedCanaries(Records(pixels.cpu().numpy(), canaries.labels), tuple(metasteps))


def _limits(
    pixels: Tensor, lower: float | NDArray[Any], upper: float | NDArray[Any]
) -> tuple[Tensor, Tensor]:
    """Both limits as tensors that broadcast against the pixels, shape (m, ...)."""
    least, most = (torch.as_tensor(limit).to(pixels) for limit in (lower, upper))
    for name, limit in (("lower", least), ("upper", most)):
        try:
            limit.expand(pixels.shape[1:])
        except RuntimeError:
            raise InputError(
                f"{name} has shape {tuple(limit.shape)}, which does not broadcast against a"
                f" record's {tuple(pixels.shape[1:])}; give a number, or an array that does"
            ) from None
    if not bool((least < most).all()):
        raise InputError(f"lower {lower} is not below upper {upper}; swap or widen them")
    outside = (pixels < least) | (pixels > most)
    if bool(outside.any()):
        raise InputError(
            f"canary {int(outside.flatten(1).any(dim=1).nonzero()[0])} starts outside the limits;"
            " widen lower and upper, or clip the canaries"
        )
    return least, most
