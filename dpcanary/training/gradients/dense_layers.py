"""Linear layers with activations between them: gradients in closed form.

A record's gradient in a layer's weights is the outer product of the loss's derivative in the
layer's outputs and the layer's inputs, so its norm is a product of norms (Goodfellow, 2015). The
clipped sums need neither per-record gradients nor a second pass.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import torch
from torch import Tensor, nn

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


def linear_layers(layers: Sequence[nn.Module]) -> list[nn.Linear]:
    """The linear layers, if these alternate with known activations; else an empty list."""
    linear = [layer for layer in layers[::2] if type(layer) is nn.Linear and layer.bias is not None]
    known = len(layers) == 2 * len(linear) - 1
    return linear if known and all(type(layer) in ACTIVATIONS for layer in layers[1::2]) else []


class DenseLayers:
    """The layers of many models. A row of a buffer holds their parameters in the module's order.

    Args:
        layers: linear layers with bias, with activations of `ACTIVATIONS` between them.

    Attributes:
        shapes: (outputs, inputs) of every layer.
        num_outputs: of the last layer.
        num_parameters: width of the buffers.
        numbers: per record: its features, and activations and gradients of every layer.
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
        """Gradients in the outputs of every layer, before the activation.

        Args:
            parameters: shape (runs, num_parameters).
            inputs: of every layer.
            slopes: gradient in the logits.
        """
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

        Args:
            gradients: of `backward`.
            squares: squared norms of every layer's inputs.
            norms: are changed.
        """
        # The bias counts as one more input, which is 1.
        for gradient, square in zip(gradients, squares, strict=True):
            norms.addcmul_(gradient.square().sum(dim=-1), square + 1.0)

    def add_sums(
        self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], scales: Tensor, out: Tensor
    ) -> None:
        """Adds the scaled gradients of the records to `out`.

        Args:
            inputs: of every layer.
            gradients: of `backward`; are changed.
            scales: shape (runs, n).
            out: shape (runs, num_parameters).
        """
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
