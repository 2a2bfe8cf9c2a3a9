"""Multilayer perceptrons: gradients of a whole ensemble by one backward pass in closed form."""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor, nn

from dpcanary.training.gradient_path import Batch, GradientPath, RecordTable
from dpcanary.training.gradients.linear import LINKS
from dpcanary.training.kernels.perceptron_kernel import (
    RELU,
    SIGMOID,
    TANH,
    Layers,
    Table,
    add_clipped_gradients,
)
from dpcanary.training.losses import residuals, target_outputs
from dpcanary.training.training_settings import Loss

Activation = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
_ATEN = torch.ops.aten
# Each activation has its function, in place, and its backward pass, which turns a gradient and the
# activation's *output* into the gradient in its input, in place.
ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: (torch.tanh_, lambda g, a: _ATEN.tanh_backward.grad_input(g, a, grad_input=g)),
    nn.Sigmoid: (
        torch.sigmoid_,
        lambda g, a: _ATEN.sigmoid_backward.grad_input(g, a, grad_input=g),
    ),
    nn.ReLU: (torch.relu_, lambda g, a: _ATEN.threshold_backward.grad_input(g, a, 0, grad_input=g)),
}


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer of PyTorch's computes what its class does, with parameters in its order.

    Pruning, old weight norm and spectral norm keep the class, but replace its parameters.
    """
    names = ["weight", "bias"] if isinstance(layer, nn.Linear | nn.Conv2d) else []
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        layer._backward_hooks,
        layer._backward_pre_hooks,
    )
    return [*layer._parameters] == names and not any(hooks) and "forward" not in vars(layer)


def linear_layers(layers: Sequence[nn.Module]) -> list[nn.Linear]:
    """The linear layers, if these alternate with known activations; else an empty list.

    All must be plain.
    """
    linear = [layer for layer in layers[::2] if type(layer) is nn.Linear and layer.bias is not None]
    alternate = len(layers) == 2 * len(linear) - 1
    alternate = alternate and all(type(layer) in ACTIVATIONS for layer in layers[1::2])
    return linear if alternate and all(map(is_plain, layers)) else []


class DenseLayers:
    """The layers, as `linear_layers` accepts them, of many models.

    A row of a buffer holds a model's parameters in the module's order. `numbers` are the numbers
    of a record: its features, and activations and gradients of every layer.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self.shapes = [(layer.out_features, layer.in_features) for layer in linear]
        self._activations = [
            ACTIVATIONS[type(layer)] for layer in layers if type(layer) in ACTIVATIONS
        ]
        self.num_outputs = self.shapes[-1][0]
        self.num_parameters = sum(outs * (ins + 1) for outs, ins in self.shapes)
        self.numbers = sum(outs for outs, _ in self.shapes) * 3 + self.shapes[0][1]

    def forward(self, parameters: Tensor, features: Tensor) -> list[Tensor]:
        """Inputs of every layer, then the logits, shape (runs, n, width).

        The first are the features as given: (n, width) where the runs share the records.
        """
        values = [features]
        for (weight, bias), activation in zip_longest(self._layers(parameters), self._activations):
            outputs = torch.matmul(values[-1], weight.transpose(1, 2))
            outputs.add_(bias.unsqueeze(1))
            values.append(activation[0](outputs) if activation else outputs)
        return values

    def backward(
        self, parameters: Tensor, inputs: Sequence[Tensor], slopes: Tensor
    ) -> list[Tensor]:
        """Gradients in the outputs of every layer before its activation; `slopes` in the logits."""
        gradients = [slopes]
        weights = [weight for weight, _ in self._layers(parameters)]
        for layer in range(len(self.shapes) - 1, 0, -1):
            back = torch.matmul(gradients[0], weights[layer])
            gradients.insert(0, self._activations[layer - 1][1](back, inputs[layer]))
        return gradients

    def input_gradients(self, parameters: Tensor, slopes: Tensor) -> Tensor:
        """Gradients in the features, from those in the first layer's outputs."""
        weight, _ = next(self._layers(parameters))
        return torch.matmul(slopes, weight)

    def add_squared_norms(
        self, gradients: Sequence[Tensor], squares: Sequence[Tensor], norms: Tensor
    ) -> None:
        """Adds the squared norms of the records' gradients to `norms`, shape (runs, n).

        `squares` are the squared norms of every layer's inputs.
        """
        # The bias counts as one more input, which is 1.
        for gradient, square in zip(gradients, squares, strict=True):
            norms.addcmul_(gradient.square().sum(dim=-1), square + 1.0)

    def add_sums(
        self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], scales: Tensor, out: Tensor
    ) -> None:
        """Adds the records' gradients times `scales`, shape (runs, n); changes `gradients`."""
        for layer, (weight_sum, bias_sum) in enumerate(self._layers(out)):
            scaled = gradients[layer].mul_(scales.unsqueeze(-1))
            if inputs[layer].dim() == 3:
                weight_sum.baddbmm_(scaled.transpose(1, 2), inputs[layer])
            else:
                weight_sum += torch.matmul(scaled.transpose(1, 2), inputs[layer])
            bias_sum += scaled.sum(dim=1)

    def _layers(self, buffer: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Views of each layer's weight (runs, out, in) and bias (runs, out) in a buffer."""
        first = 0
        for outs, ins in self.shapes:
            weight = buffer[:, first : first + outs * ins].view(-1, outs, ins)
            first += outs * ins
            yield weight, buffer[:, first : first + outs]
            first += outs


def scales_of(squared_norms: Tensor, max_grad_norm: float, weights: Tensor) -> Tensor:
    """What clipping leaves of each record, times its weight; overwrites `squared_norms`."""
    # A zero gradient gives C / 0 = inf, clamped to 1.
    return squared_norms.rsqrt_().mul_(max_grad_norm).clamp_(max=1.0).mul_(weights)


# On the host, above this sampling rate, weights on shared records are faster than gathering.
_SHARED_ABOVE = 0.6
# Bytes of a block's activations that are computed at once; larger batches are split.
_BYTES_AT_ONCE = 2**26
# Bytes of a block's parameters on the host; larger blocks are no faster.
_PARAMETER_BYTES_TOGETHER = 2**21


class PerceptronPath(GradientPath):
    """Gradients of perceptrons; a row of the buffer holds the parameters in the module's order."""

    name = "perceptron"

    def __init__(self, table: RecordTable, module: nn.Sequential, *, loss: Loss) -> None:
        self.table, self._loss = table, loss
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
        scales = scales_of(norms, max_grad_norm, batch.weights)
        self._layers.add_sums(inputs, gradients, scales, out)

    def logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        """See `GradientPath`."""
        return self._layers.forward(parameters, features)[-1]

    def bytes_per_run(self, batch_size: int) -> int:
        """See `GradientPath`; counts the sums and the numbers of the batch's records."""
        return 4 * (self.num_parameters + self._layers.numbers * batch_size)


_KINDS = {nn.Tanh: TANH, nn.Sigmoid: SIGMOID, nn.ReLU: RELU}
# The widest layer, features included. Against PyTorch's products, with batches of 16 / 100 / 400
# records, the pass takes these shares of the time: width 8: .4 / .2 / .15; 64: .9 / .8 / .5; 96:
# 1.1 / .9 / .5; 192: 1.4 / 1 / .85.
_WIDEST = 64
# Above this sampling rate, weights on shared records are faster than gathering each run's batch,
# which takes a third of the time of the rest.
_SHARED_ABOVE_IN_SMALL = 0.75
# More runs in a block are no faster; fewer leave their parameters in the core's second cache.
_RUNS_TOGETHER = 512


def is_small(layers: Sequence[nn.Linear], device: torch.device) -> bool:
    """Whether the compiled pass is faster than PyTorch's products."""
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    return device.type == "cpu" and max(widths) <= _WIDEST


class SmallPerceptronPath(PerceptronPath):
    """Gradients of perceptrons on the host, in float32."""

    name = "small perceptron"

    def __init__(self, table: RecordTable, module: nn.Sequential, *, loss: Loss) -> None:
        super().__init__(table, module, loss=loss)
        self.shared_above, self.runs_together = _SHARED_ABOVE_IN_SMALL, _RUNS_TOGETHER
        kinds = [_KINDS[type(layer)] for layer in module if type(layer) in _KINDS]
        self._compiled_layers = Layers(
            widths=np.array([table.features.shape[1], *(outs for outs, _ in self._layers.shapes)]),
            activations=np.array(kinds, np.int64),
            link=LINKS[loss],
        )
        self._compiled_table = Table(
            features=table.features.contiguous().numpy(),
            labels=table.labels.float().numpy(),
            squares=self._squares.numpy(),
        )

    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """See `GradientPath`."""
        rows, weights = torch.atleast_2d(batch.rows), batch.weights  # type: ignore[no-untyped-call]
        if weights.stride(0) == 0:  # the runs share one row of weights
            weights = weights[:1]
        add_clipped_gradients(
            self._compiled_table,
            self._compiled_layers,
            parameters.numpy(),
            rows.contiguous().numpy(),
            weights.contiguous().numpy(),
            np.float32(max_grad_norm),
            out.numpy(),
        )

    def bytes_per_run(self, batch_size: int) -> int:
        """See `GradientPath`; counts the sums, and the rows and weights of the batch."""
        return 4 * self.num_parameters + 12 * batch_size
