"""Multilayer perceptrons: gradients of a whole ensemble by one backward pass in closed form."""

import torch
from torch import Tensor, nn

from dpcanary.training.gradients.dense_layers import DenseLayers
from dpcanary.training.gradients.gradient_path import Batch, GradientPath, RecordTable
from dpcanary.training.losses import residuals, target_outputs
from dpcanary.training.options import Loss

# On the host, above this sampling rate, weights on shared records are faster than gathering.
_SHARED_ABOVE = 0.6
# Bytes of a block's activations that are computed at once; larger batches are split.
_BYTES_AT_ONCE = 2**26
# Bytes of a block's parameters on the host; larger blocks are no faster.
_PARAMETER_BYTES_TOGETHER = 2**21


class PerceptronPath(GradientPath):
    """Gradients of perceptrons; a row of the buffer holds the parameters in the module's order."""

    name = "perceptron"

    def __init__(
        self,
        table: RecordTable,
        module: nn.Sequential,
        *,
        loss: Loss,
    ) -> None:
        """Reads the layers' shapes and activations.

        Args:
            table: the records, with F features each.
            module: layers that `dense_layers.linear_layers` accepts.
            loss: of each record.
        """
        self.table = table
        self._loss = loss
        self._layers = DenseLayers([*module])
        self.num_outputs = self._layers.num_outputs
        self.num_parameters = self._layers.num_parameters
        self._targets = target_outputs(table.labels, self.num_outputs)
        self._squares = table.features.square().sum(dim=1)
        on_host = table.features.device.type == "cpu"
        self.shared_above = _SHARED_ABOVE if on_host else 1.0
        together = max(1, _PARAMETER_BYTES_TOGETHER // (4 * self.num_parameters))
        self.runs_together = together if on_host else None

    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """See `GradientPath`."""
        out.zero_()
        at_once = max(64, _BYTES_AT_ONCE // (4 * self._layers.numbers * len(parameters)))
        parts = torch.split(batch.rows, at_once, dim=-1), torch.split(batch.weights, at_once, dim=1)
        for rows, weights in zip(*parts, strict=True):
            self._add_sums(parameters, Batch(rows, weights), max_grad_norm, out)

    def _add_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        inputs = self._layers.forward(parameters, self.table.features[batch.rows])
        outputs = inputs.pop()
        slopes = residuals(outputs, self._targets[batch.rows], self._loss, dim=-1)
        gradients = self._layers.backward(parameters, inputs, slopes)
        squares = [self._squares[batch.rows], *(v.square().sum(dim=-1) for v in inputs[1:])]
        norms = torch.zeros_like(batch.weights)
        self._layers.add_squared_norms(gradients, squares, norms)
        # A zero gradient gives C / 0 = inf, clamped to 1.
        scales = norms.rsqrt_().mul_(max_grad_norm).clamp_(max=1.0).mul_(batch.weights)
        self._layers.add_sums(inputs, gradients, scales, out)

    def logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        """See `GradientPath`."""
        return self._layers.forward(parameters, features)[-1]

    def bytes_per_run(self, batch_size: int) -> int:
        """See `GradientPath`; counts the sums and the numbers of the batch's records."""
        return 4 * (self.num_parameters + self._layers.numbers * batch_size)
