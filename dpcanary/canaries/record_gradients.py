"""Loss gradients of single records through a linear reference model, in factored form.

The gradient of softmax cross-entropy is the outer product of residual (probabilities minus
one-hot label) and features with a bias of 1, so inner products of gradients are products of inner
products, and no gradient need be built.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from dpcanary.features import with_bias


@dataclass(frozen=True)
class RecordGradients:
    """Gradients of n records.

    Attributes:
        residuals: shape (n, classes).
        features: shape (n, features + 1), the last 1.
    """

    residuals: NDArray[np.float64]
    features: NDArray[np.float64]


def record_gradients(
    *, weights: NDArray[np.float32], features: NDArray[np.float32], labels: NDArray[np.int64]
) -> RecordGradients:
    """Gradients of records at a model.

    Args:
        weights: shape (classes, features + 1), the bias last.
        features: shape (n, features).
        labels: shape (n,).
    """
    inputs = with_bias(features.astype(np.float64))
    residuals = softmax(inputs @ weights.T.astype(np.float64), axis=1)
    residuals[np.arange(len(labels)), labels] -= 1.0
    return RecordGradients(residuals=residuals, features=inputs)


def cosine_similarity(gradients: RecordGradients, target: RecordGradients) -> NDArray[np.float64]:
    """Cosine between each of n gradients and one target gradient, shape (n,); 0 for a null one."""
    inner = (gradients.residuals @ target.residuals[0]) * (gradients.features @ target.features[0])
    norms = _norms(gradients) * _norms(target)[0]
    return np.asarray(np.divide(inner, norms, out=np.zeros_like(inner), where=norms > 0))


def _norms(gradients: RecordGradients) -> NDArray[np.float64]:
    return np.asarray(
        np.linalg.norm(gradients.residuals, axis=1) * np.linalg.norm(gradients.features, axis=1)
    )
