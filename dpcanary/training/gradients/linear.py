"""Linear heads: gradients of a whole ensemble in two matrix products.

A record's gradient is the outer product of the loss's derivative in the logits (the residual) and
the record's features, so its norm is the product of their norms. Clipping therefore needs no
per-record gradient. A constant feature of 1 stands for the bias.

A head may be trained in the span of its records. Its gradients lie in the span of the records'
features, and the noise is isotropic. Take an orthonormal basis whose first vectors span the
records: the coordinates along the other vectors get noise alone, and no logit of a training record
depends on them. With fewer records than features, it therefore suffices to train in the span (n
coordinates per class instead of the width), and to add the missing noise once at the end where
whole parameters are needed. The distribution of everything that the audit observes stays the same.
This holds for plain descent and momentum, which commute with rotations, but not for Adam, which
scales each coordinate.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from dpcanary.training.gradient_path import Batch, GradientPath, RecordTable
from dpcanary.training.kernels.linear_kernel import (
    IDENTITY,
    SIGMOIDS,
    SOFTMAX,
    add_clipped_gradients,
)
from dpcanary.training.losses import residuals, target_outputs
from dpcanary.training.training_settings import Loss

# Widths are padded with zero features to whole cache lines; misaligned rows are a fifth slower.
_ALIGNMENT = 16
# On the host, above this sampling rate, one product over all records, most of weight 1, is faster
# than gathering each run's batch (benchmarks/README.md).
_DENSE_ABOVE = 0.75
# Runs in one product: enough for full speed, few enough for the caches.
_RUNS_TOGETHER = 128


LINKS = {Loss.CROSS_ENTROPY: SOFTMAX, Loss.SQUARED_ERROR: IDENTITY}
LINKS |= dict.fromkeys((Loss.BINARY_CROSS_ENTROPY, Loss.LOGISTIC), SIGMOIDS)


class LinearPath(GradientPath):
    """Gradients of linear heads; a row of the buffer is a (classes, width) matrix.

    The width is that of the features and the bias, or of the basis, padded to a multiple of 16.
    """

    name = "linear"

    def __init__(
        self, table: RecordTable, *, num_outputs: int, loss: Loss, basis: Tensor | None = None
    ) -> None:
        """Lays the records out; `basis` has orthonormal columns, shape (features + 1, n)."""
        self._num_features = table.features.shape[1]
        self._basis = basis
        self._loss = loss
        used = self._num_features + 1 if basis is None else basis.shape[1]
        self._width = -(-used // _ALIGNMENT) * _ALIGNMENT
        self.num_outputs = num_outputs
        self.num_parameters = num_outputs * self._width
        self.table = replace(table, features=self.lift(table.features))
        self.table.features[table.null] = 0.0  # its bias feature too
        self._norms = torch.linalg.vector_norm(self.table.features, dim=1)
        self._targets = target_outputs(table.labels, num_outputs)
        on_host = self._norms.device.type == "cpu"
        self.shared_above = _DENSE_ABOVE if on_host else 0.0
        self.runs_together = _RUNS_TOGETHER if on_host else None

    def lift(self, features: Tensor) -> Tensor:
        """Features with their bias, in the basis, padded; shape (n, width)."""
        lifted = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
        if self._basis is not None:
            lifted = lifted @ self._basis
        return nn.functional.pad(lifted, (0, self._width - lifted.shape[1])).contiguous()

    def encode(self, parameters: Tensor) -> Tensor:
        """Rows of a buffer from parameters in the module's order: weight, then bias."""
        runs, outputs, width = len(parameters), self.num_outputs, self._num_features
        buffer = parameters.new_zeros(runs, outputs, self._width)
        plain = buffer if self._basis is None else parameters.new_empty(runs, outputs, width + 1)
        plain[:, :, :width] = parameters[:, :-outputs].view(runs, outputs, width)
        plain[:, :, width] = parameters[:, -outputs:]
        if self._basis is not None:
            torch.matmul(plain, self._basis, out=buffer[:, :, : self._basis.shape[1]])
        return buffer.view(runs, -1)

    def decode(self, buffer: Tensor) -> Tensor:
        """Parameters in the module's order; with a basis, they lie in its span."""
        matrix = buffer.view(len(buffer), self.num_outputs, self._width)
        if self._basis is not None:
            matrix = matrix[:, :, : self._basis.shape[1]] @ self._basis.T
        weight, bias = matrix[:, :, : self._num_features], matrix[:, :, self._num_features]
        return torch.cat([weight.flatten(start_dim=1), bias], dim=1)

    def columns_of(self, coordinates: Tensor) -> Tensor | None:
        """See `GradientPath`; with a basis, a parameter is spread over all columns of its class."""
        if self._basis is not None:
            return None
        width = self._num_features
        weights = self.num_outputs * width
        is_weight = coordinates < weights
        classes = torch.where(is_weight, coordinates // width, coordinates - weights)
        return classes * self._width + torch.where(is_weight, coordinates % width, width)

    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """See `GradientPath`."""
        if batch.rows.dim() == 1:
            self._sums_of_shared_rows(parameters, batch, max_grad_norm, out)
            return
        shape = (len(parameters), self.num_outputs, self._width)
        add_clipped_gradients(
            self.table.features.numpy(),
            self._targets.numpy(),
            self._norms.numpy(),
            parameters.view(shape).numpy(),
            batch.rows.numpy(),
            np.float32(max_grad_norm),
            LINKS[self._loss],
            out.view(shape).numpy(),
        )

    def _sums_of_shared_rows(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        runs, rows = len(parameters), batch.rows
        features, targets, norms = self.table.features[rows], self._targets[rows], self._norms[rows]
        outputs = torch.matmul(parameters.view(-1, self._width), features.T)
        by_class = outputs.view(runs, self.num_outputs, len(rows))
        slopes = residuals(by_class, targets.T, self._loss, dim=1)
        # Not vector_norm: across classes it takes as long as a product.
        lengths = slopes.square().sum(dim=1).sqrt_().mul_(norms)
        # A zero gradient gives C / 0 = inf, clamped to 1.
        scales = lengths.reciprocal_().mul_(max_grad_norm).clamp_(max=1.0).mul_(batch.weights)
        scaled = slopes.mul_(scales.unsqueeze(1)).flatten(0, 1)
        torch.matmul(scaled, features, out=out.view(-1, self._width))

    def logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        """See `GradientPath`."""
        matrices = parameters.view(len(parameters), self.num_outputs, self._width)
        return torch.matmul(features, matrices.transpose(1, 2))

    def bytes_per_run(self, batch_size: int) -> int:
        """See `GradientPath`; counts the sums, and logits, residuals and weights of the batch."""
        return 4 * (self.num_parameters + (3 * self.num_outputs + 2) * batch_size)


# A vector counts as dependent if less than this share of its length lies outside the others' span.
_DEPENDENT = 1e-6


def spanning_basis(vectors: Tensor) -> Tensor | None:
    """Orthonormal columns that span the vectors, or None if they would save no work.

    Args:
        vectors: shape (n, width).

    Returns:
        Shape (width, rank), or None unless n < width.
    """
    num_vectors, width = vectors.shape
    if num_vectors >= width:
        return None
    columns = vectors.double().T  # the basis must be orthonormal beyond single precision
    # A column that depends on those before it would add a direction that rounding alone
    # determines, which would differ between machines.
    outside = torch.linalg.qr(columns, mode="r").R.diagonal().abs()
    columns = columns[:, outside > _DEPENDENT * torch.linalg.vector_norm(columns, dim=0)]
    basis: Tensor = torch.linalg.qr(columns, mode="reduced").Q
    return basis.float()


def accumulated_noise(rates: Sequence[float], *, momentum: float) -> float:
    """Standard deviation of a coordinate that gets noise alone at every step.

    Descent with momentum m adds sum_t rate_t v_t with v_t = m v_{t-1} + z_t, so the draw z_s moves
    the coordinate by sum_{t >= s} rate_t m^(t-s).

    Args:
        rates: of each step, its learning rate times the standard deviation of its noise.
        momentum: m; 0 for plain descent.

    Example:
        >>> accumulated_noise([0.5] * 4, momentum=0.0)
        1.0
    """
    weight, variance = 0.0, 0.0
    for rate in reversed(rates):
        weight = rate + momentum * weight
        variance += weight**2
    return math.sqrt(variance)
