"""S4 and S5: canaries that are relabeled or real records (Pradhan et al., Algorithms 4 and 5)."""

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.crafting import Crafting, input_canary
from dpcanary.adversaries.record_gradients import RecordGradients
from dpcanary.adversaries.target import Target
from dpcanary.canaries import InputCanary
from dpcanary.errors import InputError
from dpcanary.records import Records


def mislabeled(crafting: Crafting) -> list[InputCanary]:
    """Every target with the other label whose gradient opposes the target's most."""
    num_classes = crafting.data.num_classes
    if num_classes < 2:
        raise InputError("mislabeled needs a dataset of at least 2 classes")
    found = []
    for target in crafting.targets:
        labels = np.delete(np.arange(num_classes), target.label)
        relabeled = Records(np.repeat(target.features[None], len(labels), axis=0), labels)
        found.append(input_canary(most_opposed(crafting.gradients, relabeled, target), target))
    return found


def natural(crafting: Crafting) -> list[InputCanary]:
    """For every target, the auxiliary record whose gradient opposes the target's most.

    Each record serves at most one slot.

    Raises:
        InputError: if there are more slots than auxiliary records.
    """
    auxiliary, num_slots = crafting.data.auxiliary, crafting.stage.num_slots
    if num_slots > len(auxiliary):
        raise InputError(
            f"num_slots {num_slots} is more than the {len(auxiliary)} auxiliary records"
        )
    free = np.ones(len(auxiliary), dtype=np.bool_)
    found = []
    for target in crafting.targets:
        cosines = _checked_cosines(crafting.gradients, auxiliary, target)
        best = int(np.argmin(np.where(free, cosines, np.inf)))
        free[best] = False
        found.append(input_canary(auxiliary[best : best + 1], target))
    return found


def most_opposed(gradients: RecordGradients, candidates: Records, target: Target) -> Records:
    """The candidate whose gradient has the smallest cosine with the target's, as one record.

    Raises:
        InputError: if the gradient of a candidate is not finite.
    """
    best = int(np.argmin(_checked_cosines(gradients, candidates, target)))
    return candidates[best : best + 1]


def _checked_cosines(
    gradients: RecordGradients, candidates: Records, target: Target
) -> NDArray[np.float64]:
    """Cosines of the candidates' gradients with the target's, shape (n,)."""
    own = gradients.of(gradients.inputs(target.features), gradients.labels(target.label))
    cosines = gradients.cosines(candidates, own)
    if not np.isfinite(cosines).all():
        raise InputError(
            f"candidate {int(np.argmin(np.isfinite(cosines)))} for a canary has a gradient that is"
            " not finite: lower the reference's learning_rate, or scale the features"
        )
    return cosines
