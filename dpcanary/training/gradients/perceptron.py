"""Multilayer perceptrons: gradients of a whole ensemble by one backward pass in closed form.

The gradient of a layer's weights on one record is the outer product of the loss's derivative in
the layer's outputs and the layer's inputs, so its norm is a product of norms (Goodfellow, 2015):
the clipped sums need neither per-record gradients nor a second pass.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from dpcanary.training.gradients.gradient_path import Batch, ModuleLayout, RecordTable
from dpcanary.training.gradients.precision import product
from dpcanary.training.losses import residuals, target_outputs
from dpcanary.training.options import Loss, Precision

Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
_ATEN = torch.ops.aten
# What each activation does in place, and to a gradient in place, from the activation's *output*.
ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: (torch.tanh_, lambda g, a: _ATEN.tanh_backward.grad_input(g, a, grad_input=g)),
    nn.Sigmoid: (
        torch.sigmoid_,
        lambda g, a: _ATEN.sigmoid_backward.grad_input(g, a, grad_input=g),
    ),
    nn.ReLU: (torch.relu_, lambda g, a: _ATEN.threshold_backward.grad_input(g, a, 0, grad_input=g)),
}
# On the host, above this sampling rate, shared records with weights beat gathering each run's own.
_SHARED_ABOVE = 0.6
# Activations of a block of runs, in bytes, that are computed at once; more records come in turns.
_BYTES_AT_ONCE = 2**26
_PARAMETER_BYTES_TOGETHER = 2**21


class PerceptronPath(ModuleLayout):
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
        """Reads the layers off.

        Args:
            table: records, features of shape (F,).
            module: linear layers with bias, with activations of `ACTIVATIONS` between them.
            loss: which one.
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
        self._targets = target_outputs(table.labels, self.num_outputs)
        self._squares = table.features.square().sum(dim=1)
        on_host = table.features.device.type == "cpu"
        self.shared_above = _SHARED_ABOVE if on_host else 1.0
        together = max(1, _PARAMETER_BYTES_TOGETHER // (4 * self.num_parameters))
        self.runs_together = together if on_host else None

    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """Overwrites `out` with each run's sum of clipped gradients; see `GradientPath`."""
        out.zero_()
        runs, records = batch.weights.shape
        widths = sum(outs for outs, _ in self._shapes) * 3 + self._shapes[0][1]
        at_once = max(64, _BYTES_AT_ONCE // (4 * widths * runs))
        for first in range(0, records, at_once):
            part = slice(first, first + at_once)
            self._add_sums(
                parameters,
                Batch(batch.rows[..., part], batch.weights[:, part]),
                max_grad_norm,
                out,
            )

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
        # The bias is one more input of 1.
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
        """Inputs of every layer, then the logits; all but perhaps the first (runs, n, width)."""
        values = [features]
        for layer, (weight, bias) in enumerate(self._layers(parameters)):
            outputs = product(values[-1], weight.transpose(1, 2), self._precision)
            outputs.add_(bias.unsqueeze(1))
            if layer < len(self._activations):
                self._activations[layer][0](outputs)
            values.append(outputs)
        return values

    def _layers(self, buffer: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of a buffer: of each layer, weight (runs, out, in) and bias (runs, out)."""
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
        """See `GradientPath`: sums, and gathered records with activations and gradients."""
        widths = sum(outs for outs, _ in self._shapes) * 3 + self._shapes[0][1]
        return 4 * (self.num_parameters + widths * batch_size)
