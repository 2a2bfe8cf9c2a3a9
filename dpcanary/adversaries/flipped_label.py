"""The loss-based adversary: a training record with another label (Cebere et al., A_L)."""

from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.purposes import Purpose
from dpcanary.canaries import InputCanary
from dpcanary.errors import InputError


def flipped_labels(crafting: Crafting) -> list[InputCanary]:
    """Each target with a label that is drawn from the other classes.

    With two classes this flips the label.

    Raises:
        InputError: if the data have only one class.
    """
    classes = crafting.data.num_classes
    if classes < 2:
        raise InputError("the records have one class only: there is no other label for a canary")
    stream = crafting.generator(Purpose.OTHER_LABELS)
    return [
        InputCanary(
            target.features,
            (target.label + int(stream.integers(1, classes))) % classes,
            target.index,
        )
        for target in crafting.targets
    ]
