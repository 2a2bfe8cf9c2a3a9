"""Canaries by metagradient descent (Boglioni et al., 2025, Algorithm 5)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpcanary.adversaries.adversary_settings import (
    MetagradientSettings,
    MetagradientStage,
    Purpose,
    Start,
)
from dpcanary.adversaries.crafting import Crafting, Progress, drawn_targets
from dpcanary.adversaries.input import with_other_labels
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.randomness import derived_seed, generator
from dpcanary.data.canaries import CanarySet, InputCanary
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.papers.boglioni.differentiable_training import (
    Descent,
    Task,
    Training,
    shuffled_batches,
)
from dpcanary.papers.boglioni.metagradients import loss_gap_objective, metagradient
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.residual_networks import resnet9
from dpcanary.training.runs import free_bytes
from dpcanary.training.training_settings import Initialisation

# The share of steps in which the learning rate rises.
_RISE = 0.3
# The share of the free memory that the states of a training may take.
_MEMORY = 0.5


def metagradient_canaries(crafting: Crafting) -> list[InputCanary]:
    """The canaries that `optimised_canaries` made; audits of different trainings share them."""
    if crafting.optimised is None:
        raise InputError("canary metagradient needs the file of optimised canaries")
    return [canary for canary in crafting.optimised.canaries if isinstance(canary, InputCanary)]


def optimised_canaries(
    stage: MetagradientStage, *, private: Records, device: torch.device, progress: Progress
) -> CanarySet:
    """Targets whose pixels are changed until models tell which of them they were trained on.

    All other private records are trained on, too. No pixel leaves the range of its channel in the
    private records, which are images of shape (3, 32, 32). Labels stay as they were at the start.

    Raises:
        InputError: if the records are no such images, the number of slots is odd, or a training
            diverges.
    """
    settings, shape = stage.metagradient, private.features.shape[1:]
    if shape != (3, 32, 32):
        raise InputError(
            "canary metagradient trains a ResNet-9, which takes images of shape (3, 32, 32), not"
            f" {shape}"
        )
    targets = drawn_targets(private, seed=stage.seed, count=stage.num_slots)
    target_labels = [target.label for target in targets]
    labels: Sequence[int | float] = target_labels
    if settings.start is Start.OTHER_LABEL:
        labels = with_other_labels(targets, seed=stage.seed, num_classes=private.num_classes)
    others = np.delete(np.arange(len(private)), [target.index for target in targets])
    with progress(settings.num_metasteps, "metastep") as bar:

        def show(metastep: Metastep) -> None:
            bar.set_postfix_str(f"loss gap {metastep.loss_gap:.2f}")
            bar.update(1)

        optimised = optimise_canaries(
            module=resnet9(
                private.num_classes, width=settings.width, logit_scale=settings.logit_scale
            ),
            records=private[others],
            canaries=Records(np.stack([target.features for target in targets]), np.array(labels)),
            descent=descent_of(settings),
            batch_size=settings.batch_size,
            step_size=settings.step_size,
            lower=private.features.min(axis=(0, 2, 3))[:, None, None],
            upper=private.features.max(axis=(0, 2, 3))[:, None, None],
            num_metasteps=settings.num_metasteps,
            seed=stage.seed,
            device=device,
            memory_budget=int(_MEMORY * free_bytes(device)),
            progress=show,
        ).canaries
    canaries = tuple(
        InputCanary(features, label, target.index)
        for features, label, target in zip(optimised.features, labels, targets, strict=True)
    )
    return CanarySet(canaries, tuple(target_labels))


def descent_of(settings: MetagradientSettings) -> Descent:
    """SGD with Nesterov's momentum, and a learning rate that rises and then falls along lines.

    At a high rate from the first step on, training is chaotic, and its metagradient of no use.
    """
    steps, total = np.arange(settings.num_steps), settings.num_steps
    factors = np.minimum((steps + 1) / (_RISE * total), (total - steps) / ((1 - _RISE) * total))
    factors = np.minimum(factors, 1.0)  # where both lines are above it beside their crossing
    return Descent(
        learning_rates=tuple((settings.learning_rate * factors).tolist()),
        momentum=0.9,
        nesterov=True,
        weight_decay=settings.weight_decay,
    )


@dataclass(frozen=True)
class Metastep:
    """What a metastep found before it changed the pixels; its index is 0 for the first.

    The loss gap is the mean loss of the canaries that were out minus that of those that were in,
    in nats. Each metastep has another split and start, so single gaps differ by chance.
    `last_loss` is the mean loss of the last batch, in nats. `num_replayed` steps were done twice
    because their states were not kept.
    """

    index: int
    loss_gap: float
    last_loss: float
    num_replayed: int


@dataclass(frozen=True)
class OptimisedCanaries:
    """Canaries after metagradient descent, with their labels, and the metasteps in their order."""

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
        module: maps features (n, ...) to logits (n, K); see `differentiable_training.Task`.
        records: other than canaries.
        canaries: where the descent starts; their number is even.
        descent: the optimiser of the models.
        batch_size: records and canaries of each batch.
        step_size: of a metastep, in the units of the features.
        lower: least valid feature, a number or an array that broadcasts against a record.
        upper: greatest valid feature, in the shape of `lower`.
        num_metasteps: trainings that are differentiated.
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
    task = Task(module=module, records=records, canary_labels=canaries.labels, device=device)
    pixels = task.pixels(canaries.features)
    limits = _limits(pixels, lower, upper)
    metasteps = []
    for index in range(num_metasteps):
        training, inserted = drawn_training(
            task, descent=descent, batch_size=batch_size, seed=seed, index=index
        )
        result = metagradient(
            training=training,
            pixels=pixels,
            objective=loss_gap_objective(task, inserted),
            memory_budget=memory_budget,
        )
        gap = -result.value / len(inserted)
        metasteps.append(Metastep(index, gap, result.losses[-1], result.num_replayed))
        pixels = pixels.sub(result.gradient.sign(), alpha=step_size).clamp(*limits)
        if progress:
            progress(metasteps[-1])
    return OptimisedCanaries(Records(pixels.cpu().numpy(), canaries.labels), tuple(metasteps))


def drawn_training(
    task: Task, *, descent: Descent, batch_size: int, seed: int, index: int
) -> tuple[Training, NDArray[np.int64]]:
    """A training on a random half of m canaries, and the indices of these, ascending, (m / 2,).

    Draws of different metasteps (`index`) or seeds are independent. Runs of an audit with the same
    seed start elsewhere.

    Raises:
        InputError: if the number of canaries is odd, or batches are too large.
    """
    num_canaries = len(task.canary_labels)
    if num_canaries % 2:
        raise InputError(f"{num_canaries} canaries cannot be split into halves; add or remove one")
    seed = derived_seed(seed=seed, name="metagradients")
    splits = generator(seed=seed, purpose=Purpose.METAGRADIENT_SPLITS, index=index)
    inserted = np.sort(splits.permutation(num_canaries)[: num_canaries // 2])
    batches = shuffled_batches(
        num_records=len(task.labels),
        inserted=inserted,
        batch_size=batch_size,
        num_steps=descent.num_steps,
        stream=generator(seed=seed, purpose=Purpose.METAGRADIENT_ORDERS, index=index),
    )
    starts = initial_parameters(task.module, Initialisation.PER_RUN, seed=seed, runs=[index])
    return Training(task, starts[0], batches, descent), inserted


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
