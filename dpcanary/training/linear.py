"""Linear heads trained in lockstep: gradients of a whole ensemble in two matrix products.

For softmax regression the gradient of record i is the outer product of the residual (predicted
probabilities minus one-hot label) and the record's features, so its norm is the product of their
norms: clipping needs no per-record gradient. A constant feature of 1 carries the bias.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.features import with_bias


@dataclass(frozen=True)
class LinearProblem:
    """Records laid out for the products.

    Attributes:
        features: shape (records, parameters per class), the last column 1.
        features_by_column: the same transposed, contiguous.
        one_hot: shape (classes, records).
        feature_norms: shape (records,).
    """

    features: Tensor
    features_by_column: Tensor
    one_hot: Tensor
    feature_norms: Tensor

    @property
    def num_classes(self) -> int:
        """Classes, each with a row of weights."""
        return self.one_hot.shape[0]

    @property
    def num_parameters(self) -> int:
        """Parameters of one model: weights and bias of every class."""
        return self.num_classes * self.features.shape[1]


def linear_problem(
    *,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    num_classes: int,
    device: torch.device,
) -> LinearProblem:
    """Moves records to the device, with their bias feature.

    Args:
        features: shape (records, features), without the bias.
        labels: shape (records,), from 0.
        num_classes: classes, also those that no record here has.
        device: where to train.
    """
    matrix = torch.from_numpy(with_bias(features.astype(np.float32))).to(device)
    target = torch.from_numpy(labels.astype(np.int64)).to(device)
    return LinearProblem(
        features=matrix,
        features_by_column=matrix.T.contiguous(),
        one_hot=torch.nn.functional.one_hot(target, num_classes).T.float().contiguous(),
        feature_norms=torch.linalg.vector_norm(matrix, dim=1),
    )


def logits(problem: LinearProblem, weights: Tensor) -> Tensor:
    """Logits of every run, class and record.

    Args:
        problem: the records.
        weights: shape (runs, classes, parameters per class).

    Returns:
        Shape (runs, classes, records).
    """
    runs, classes, width = weights.shape
    flat = torch.mm(weights.view(runs * classes, width), problem.features_by_column)
    return flat.view(runs, classes, -1)


def clipped_residuals(
    problem: LinearProblem, weights: Tensor, inclusion: Tensor, max_grad_norm: float
) -> Tensor:
    """Residuals scaled so that their product with the features is the clipped gradient sum.

    Args:
        problem: the records.
        weights: shape (runs, classes, parameters per class).
        inclusion: shape (runs, records), 1 where a record is in the run's batch, else 0.
        max_grad_norm: the norm that each record's gradient is clipped to; inf does not clip.

    Returns:
        Shape (runs, classes, records).
    """
    residuals = torch.softmax(logits(problem, weights), dim=1).sub_(problem.one_hot)
    norms = residuals.square().sum(dim=1).sqrt_().mul_(problem.feature_norms)
    # A zero gradient gives 0 / 0-free: C / 0 = inf, clamped to 1.
    scales = norms.reciprocal_().mul_(max_grad_norm).clamp_(max=1.0).mul_(inclusion)
    return residuals.mul_(scales.unsqueeze(1))


def descend(
    problem: LinearProblem, weights: Tensor, residuals: Tensor, noise: Tensor | None, rate: float
) -> None:
    """Moves the weights, in place, by -rate x (gradient sum + noise).

    Args:
        problem: the records.
        weights: shape (runs, classes, parameters per class).
        residuals: shape (runs, classes, records), from `clipped_residuals`.
        noise: shape (runs, parameters), or None for no noise.
        rate: learning rate over expected batch size.
    """
    runs, classes, width = weights.shape
    flat = weights.view(runs * classes, width)
    flat.addmm_(residuals.view(runs * classes, -1), problem.features, alpha=-rate)
    if noise is not None:
        weights.view(runs, -1).add_(noise, alpha=-rate)
