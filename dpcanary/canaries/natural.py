"""S4 and S5: canaries that are real records or real inputs (Pradhan et al., Algorithms 4, 5)."""

import numpy as np
from numpy.typing import NDArray

from dpcanary.canaries import InputCanary
from dpcanary.canaries.record_gradients import cosine_similarity, record_gradients


def mislabeled(
    *, weights: NDArray[np.float32], target_features: NDArray[np.float32], target_label: int
) -> InputCanary:
    """The target with the other label whose gradient opposes the target's most.

    Args:
        weights: the reference model, shape (classes, features + 1).
        target_features: shape (features,).
        target_label: its true label.
    """
    num_classes = len(weights)
    labels = np.arange(num_classes)
    chosen = _most_opposed(
        weights, np.tile(target_features, (num_classes, 1)), labels, target_features, target_label
    )
    return InputCanary(features=target_features, label=chosen)


def natural(
    *,
    weights: NDArray[np.float32],
    auxiliary_features: NDArray[np.float32],
    auxiliary_labels: NDArray[np.int64],
    target_features: NDArray[np.float32],
    target_label: int,
) -> InputCanary:
    """The auxiliary record whose gradient opposes the target's most.

    Args:
        weights: the reference model, shape (classes, features + 1).
        auxiliary_features: shape (n, features); disjoint from the private records.
        auxiliary_labels: shape (n,).
        target_features: shape (features,).
        target_label: the target's label.
    """
    chosen = _most_opposed(
        weights, auxiliary_features, auxiliary_labels, target_features, target_label
    )
    return InputCanary(features=auxiliary_features[chosen], label=int(auxiliary_labels[chosen]))


def _most_opposed(
    weights: NDArray[np.float32],
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    target_features: NDArray[np.float32],
    target_label: int,
) -> int:
    """Index of the record whose gradient has the smallest cosine with the target's."""
    target = record_gradients(
        weights=weights, features=target_features[None, :], labels=np.array([target_label])
    )
    candidates = record_gradients(weights=weights, features=features, labels=labels)
    return int(np.argmin(cosine_similarity(candidates, target)))
