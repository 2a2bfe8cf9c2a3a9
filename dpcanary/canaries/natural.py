"""S4 and S5: canaries that are real records or real inputs (Pradhan et al., Algorithms 4, 5)."""

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.canaries import InputCanary
from dpcanary.canaries.record_gradients import RecordGradients, as_inputs
from dpcanary.errors import InputError


def mislabeled(
    *,
    gradients: RecordGradients,
    num_classes: int,
    target_features: NDArray[np.float32],
    target_label: int,
) -> InputCanary:
    """The target with the other label whose gradient opposes the target's most.

    Args:
        gradients: of the reference model.
        num_classes: labels to choose from.
        target_features: shape (...).
        target_label: its true label.
    """
    labels = np.delete(np.arange(num_classes), target_label)
    copies = np.repeat(target_features[None], len(labels), axis=0)
    chosen = _most_opposed(gradients, copies, labels, target_features, target_label)
    return InputCanary(features=target_features, label=int(labels[chosen]))


def natural(
    *,
    gradients: RecordGradients,
    auxiliary_features: NDArray[np.float32],
    auxiliary_labels: NDArray[np.int64],
    target_features: NDArray[np.float32],
    target_label: int,
) -> InputCanary:
    """The auxiliary record whose gradient opposes the target's most.

    Args:
        gradients: of the reference model.
        auxiliary_features: shape (n, ...); disjoint from the private records.
        auxiliary_labels: shape (n,).
        target_features: shape (...).
        target_label: the target's label.
    """
    chosen = _most_opposed(
        gradients, auxiliary_features, auxiliary_labels, target_features, target_label
    )
    return InputCanary(features=auxiliary_features[chosen], label=int(auxiliary_labels[chosen]))


def _most_opposed(
    gradients: RecordGradients,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    target_features: NDArray[np.float32],
    target_label: int,
) -> int:
    """Index of the record whose gradient has the smallest cosine with the target's."""
    target = gradients.of(as_inputs(target_features), torch.tensor(target_label))
    cosines = gradients.cosines(features, labels, target)
    if not np.isfinite(cosines).all():
        raise InputError(
            f"candidate {int(np.argmin(np.isfinite(cosines)))} for a canary has a gradient that is"
            " not finite: lower the reference's learning_rate, or scale the features"
        )
    return int(np.argmin(cosines))
