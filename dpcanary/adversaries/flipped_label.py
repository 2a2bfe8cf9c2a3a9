"""The loss-based adversary: a training record with another label (Cebere et al., A_L)."""

from collections.abc import Sequence

from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.purposes import Purpose
from dpcanary.adversaries.target import Target
from dpcanary.canaries import InputCanary
from dpcanary.errors import InputError
from dpcanary.randomness import generator


def flipped_labels(crafting: Crafting) -> list[InputCanary]:
    """Each target with another label, by `with_other_labels`."""
    labels = with_other_labels(
        crafting.targets, seed=crafting.stage.seed, num_classes=crafting.data.num_classes
    )
    return [
        InputCanary(target.features, label, target.index)
        for target, label in zip(crafting.targets, labels, strict=True)
    ]


def with_other_labels(targets: Sequence[Target], *, seed: int, num_classes: int) -> list[int]:
    """For each target a label that is drawn from the other classes.

    With two classes this flips the label.

    Args:
        targets: with their own labels.
        seed: the audit's seed.
        num_classes: of the data.

    Raises:
        InputError: if the data have only one class.
    """
    if num_classes < 2:
        raise InputError("the records have one class only: there is no other label for a canary")
    stream = generator(seed=seed, purpose=Purpose.OTHER_LABELS)
    return [
        (target.label + int(stream.integers(1, num_classes))) % num_classes for target in targets
    ]
