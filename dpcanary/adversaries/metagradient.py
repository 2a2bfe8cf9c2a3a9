"""Canaries by metagradient descent (Boglioni et al., 2025, Algorithm 5)."""

import numpy as np
import torch

from dpcanary.adversaries.crafting import Crafting, Progress, Target, drawn_targets
from dpcanary.adversaries.input import with_other_labels
from dpcanary.canaries import CanarySet, InputCanary
from dpcanary.errors import InputError
from dpcanary.metagradients.canaries import Metastep, optimise_canaries
from dpcanary.metagradients.descent import Descent
from dpcanary.metagradients.settings import MetagradientSettings, MetagradientStage, Start
from dpcanary.records import Records
from dpcanary.training.residual_networks import resnet9
from dpcanary.training.runs import free_bytes

_MOMENTUM = 0.9
# The share of steps in which the learning rate rises.
_RISE = 0.3
# The share of the free memory that the states of a training may take.
_MEMORY = 0.5


def metagradient_canaries(crafting: Crafting) -> list[InputCanary]:
    """The canaries that `optimised_canaries` made; audits of different trainings share them.

    Raises:
        InputError: if there are none.
    """
    if crafting.optimised is None:
        raise InputError("canary metagradient needs the file of optimised canaries")
    return [one for one in crafting.optimised.canaries if isinstance(one, InputCanary)]


def optimised_canaries(
    stage: MetagradientStage, *, private: Records, device: torch.device, progress: Progress
) -> CanarySet:
    """Targets whose pixels are changed until models tell which of them they were trained on.

    All other private records are trained on, too. No pixel leaves the range of its channel in the
    private records. Labels stay as they were at the start.

    Args:
        stage: settings.
        private: images of shape (3, 32, 32).
        device: where to compute.
        progress: makes a progress bar.

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
    labels = _start_labels(targets, stage, num_classes=private.num_classes)
    others = np.delete(np.arange(len(private)), [target.index for target in targets])
    with progress(settings.num_metasteps, "metastep") as bar:

        def show(metastep: Metastep) -> None:
            bar.set_postfix_str(f"loss gap {metastep.loss_gap:.2f}")
            bar.update(1)

        found = optimise_canaries(
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
        for features, label, target in zip(found.features, labels, targets, strict=True)
    )
    return CanarySet(canaries, tuple(target.label for target in targets))


def _start_labels(
    targets: list[Target], stage: MetagradientStage, *, num_classes: int
) -> list[int]:
    if stage.metagradient.start is Start.RECORD:
        return [target.label for target in targets]
    return with_other_labels(targets, seed=stage.seed, num_classes=num_classes)


def descent_of(settings: MetagradientSettings) -> Descent:
    """SGD with Nesterov's momentum, and a learning rate that rises and then falls along lines.

    At a high rate from the first step on, training is chaotic, and its metagradient of no use.
    """
    steps, total, rise = np.arange(settings.num_steps), settings.num_steps, _RISE
    factors = np.minimum((steps + 1) / (rise * total), (total - steps) / ((1 - rise) * total))
    return Descent(
        learning_rates=tuple((settings.learning_rate * factors).tolist()),
        momentum=_MOMENTUM,
        nesterov=True,
        weight_decay=settings.weight_decay,
    )
