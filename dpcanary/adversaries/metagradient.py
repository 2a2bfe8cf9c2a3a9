"""Canaries by metagradient descent (Boglioni et al., 2025, Algorithm 5)."""

import numpy as np

from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.flipped_label import flipped_labels
from dpcanary.adversaries.random_record import random_records
from dpcanary.canaries import InputCanary
from dpcanary.errors import InputError
from dpcanary.metagradients.canaries import Metastep, optimise_canaries
from dpcanary.metagradients.descent import Descent
from dpcanary.metagradients.options import MetagradientSettings, Start
from dpcanary.records import Records
from dpcanary.training.memory import free_bytes
from dpcanary.training.residual_networks import resnet9

_MOMENTUM = 0.9
# The share of steps in which the learning rate rises.
_RISE = 0.3
_STARTS = {Start.RECORD: random_records, Start.OTHER_LABEL: flipped_labels}
# The share of the free memory that the states of a training may take.
_SHARE = 2


def metagradient_canaries(crafting: Crafting) -> list[InputCanary]:
    """Targets whose pixels are changed until models tell which of them they were trained on.

    All other private records are trained on, too. No pixel leaves the range of its channel in the
    private records. Labels stay as they were at the start.

    Raises:
        InputError: if the records are no images of shape (3, 32, 32), the number of slots is odd,
            or a training diverges.
    """
    settings, private = crafting.stage.metagradient, crafting.data.private
    assert settings is not None  # the catalogue says that this function uses it
    shape = private.features.shape[1:]
    if shape != (3, 32, 32):
        raise InputError(
            "canary metagradient trains a ResNet-9, which takes images of shape (3, 32, 32), not"
            f" {shape}"
        )
    starts = _STARTS[settings.start](crafting)
    others = np.delete(np.arange(len(private)), [canary.target for canary in starts])
    pixels = np.stack([canary.features for canary in starts])
    axes = (0, 2, 3)
    with crafting.progress(settings.num_metasteps, "metastep") as bar:

        def show(metastep: Metastep) -> None:
            bar.set_postfix_str(f"loss gap {metastep.loss_gap:.2f}")
            bar.update(1)

        found = optimise_canaries(
            module=resnet9(
                crafting.data.num_classes, width=settings.width, logit_scale=settings.logit_scale
            ),
            records=private[others],
            canaries=Records(pixels, np.array([canary.label for canary in starts])),
            descent=descent_of(settings),
            batch_size=settings.batch_size,
            step_size=settings.step_size,
            lower=private.features.min(axis=axes)[:, None, None],
            upper=private.features.max(axis=axes)[:, None, None],
            num_metasteps=settings.num_metasteps,
            seed=crafting.stage.seed,
            device=crafting.device,
            memory_budget=free_bytes(crafting.device) // _SHARE,
            progress=show,
        ).canaries
    return [
        InputCanary(features, canary.label, canary.target)
        for features, canary in zip(found.features, starts, strict=True)
    ]


def descent_of(settings: MetagradientSettings) -> Descent:
    """SGD with Nesterov's momentum, and a learning rate that rises and then falls along lines.

    At a high rate from the first step on, training is chaotic and its metagradient of no use.
    """
    steps, rise = np.arange(settings.num_steps), _RISE * settings.num_steps
    factors = np.minimum(
        (steps + 1) / rise, (settings.num_steps - steps) / (settings.num_steps - rise)
    )
    return Descent(
        learning_rates=tuple((settings.learning_rate * factors).tolist()),
        momentum=_MOMENTUM,
        nesterov=True,
        weight_decay=settings.weight_decay,
    )
