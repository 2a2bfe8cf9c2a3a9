"""Multilayer perceptrons: gradients of a whole ensemble by one backward pass in closed form.

A record's gradient in a layer's weights is the outer product of the loss's derivative in the
layer's outputs and the layer's inputs, so its norm is a product of norms (Goodfellow, 2015). The
clipped sums need neither per-record gradients nor a second pass.
"""

from collections.abc import Callable, Iterator
from itertools import zip_longest

import torch
from torch import Tensor, nn

from dpcanary.training.gradients.gradient_path import Batch, GradientPath, RecordTable
from dpcanary.training.gradients.precision import product
from dpcanary.training.losses import residuals, target_outputs
from dpcanary.training.options import Loss, Precision

Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
_ATEN = torch.ops.aten
# Of each activation: its function, in place, and its backward pass, which turns a gradient and the
# activation's *output* into the gradient in its input, in place.
ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: (torch.tanh_, lambda g, a: _ATEN.tanh_backward.grad_input(g, a, grad_input=g)),
    nn.Sigmoid: (
        torch.sigmoid_,
        lambda g, a: _ATEN.sigmoid_backward.grad_input(g, a, grad_input=g),
    ),
    nn.ReLU: (torch.relu_, lambda g, a: _ATEN.threshold_backward.grad_input(g, a, 0, grad_input=g)),
}
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
        precision: Precision = Precision.FLOAT32,
    ) -> None:
        """Reads the layers' shapes and activations.

        Args:
            table: the records, with F features each.
            module: linear layers with bias, with activations of `ACTIVATIONS` between them.
            loss: of each record.
            precision: of the products.
        """
        self.table = table
        self._loss, self._precision = loss, precision
        layers = [layer for layer in module if isinstance(layer, nn.Linear)]
        self._shapes = [(layer.out_features, layer.in_features) for layer in layers]
        self._activations = [
            ACTIVATIONS[type(layer)] for layer in module if type(layer) in ACTIVATIONS
        ]
        self.num_outputs = self._shapes[-1][0]
        self.num_parameters = sum(outs * (ins + 1) for outs, ins in self._shapes)
        # Numbers per record: its features, and activations and gradients of every layer.
        self._numbers = sum(outs for outs, _ in self._shapes) * 3 + self._shapes[0][1]
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
        at_once = max(64, _BYTES_AT_ONCE // (4 * self._numbers * len(parameters)))
        parts = torch.split(batch.rows, at_once, dim=-1), torch.split(batch.weights, at_once, dim=1)
        for rows, weights in zip(*parts, strict=True):
            self._add_sums(parameters, Batch(rows, weights), max_grad_norm, out)

    def _add_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        inputs = self._forward(parameters, self.table.features[batch.rows])
        outputs = inputs.pop()
        gradients = [residuals(outputs, self._targets[batch.rows], self._loss, dim=-1)]
        weights = [weight for weight, _ in self._layers(parameters)]
        for layer in range(len(self._shapes) - 1, 0, -1):
            back = product(gradients[0], weights[layer], self._precision)
            gradients.insert(0, self._activations[layer - 1][1](back, inputs[layer]))
        # The bias counts as one more input, which is 1.
        squares = [self._squares[batch.rows], *(v.square().sum(dim=-1) for v in inputs[1:])]
        norms = torch.zeros_like(batch.weights)
        for gradient, square in zip(gradients, squares, strict=True):
            norms.addcmul_(gradient.square().sum(dim=-1), square + 1.0)
        # A zero gradient gives C / 0 = inf, clamped to 1.
        scales = norms.rsqrt_().mul_(max_grad_norm).clamp_(max=1.0)
        scales = scales.mul_(batch.weights).unsqueeze(-1)
        for layer, (weight_sum, bias_sum) in enumerate(self._layers(out)):
            scaled = gradients[layer].mul_(scales)
            if self._precision is Precision.FLOAT32 and inputs[layer].dim() == 3:
                weight_sum.baddbmm_(scaled.transpose(1, 2), inputs[layer])
            else:
                weight_sum += product(scaled.transpose(1, 2), inputs[layer], self._precision)
            bias_sum += scaled.sum(dim=1)

    def _forward(self, parameters: Tensor, features: Tensor) -> list[Tensor]:
        """Inputs of every layer, then the logits, shape (runs, n, width).

        The first are the features as given: (n, width) where the runs share the records.
        """
        values = [features]
        for (weight, bias), activation in zip_longest(self._layers(parameters), self._activations):
            outputs = product(values[-1], weight.transpose(1, 2), self._precision)
            outputs.add_(bias.unsqueeze(1))
            values.append(activation[0](outputs) if activation else outputs)
        return values

    def _layers(self, buffer: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of each layer's weight (runs, out, in) and bias (runs, out) in a buffer."""
        first = 0
        for outs, ins in self._shapes:
            weight = buffer[:, first : first + outs * ins].view(-1, outs, ins)
            first += outs * ins
            yield weight, buffer[:, first : first + outs]
            first += outs

    def logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        """See `GradientPath`."""
        return self._forward(parameters, features)[-1]

    def bytes_per_run(self, batch_size: int) -> int:
        """See `GradientPath`; counts the sums and the numbers of the batch's records."""
        return 4 * (self.num_parameters + self._numbers * batch_size)
