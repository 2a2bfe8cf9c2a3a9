"""Clipped gradient sums of layers whose gradients are sums of outer products.

A record's gradient in a linear layer's weight is the sum over its positions of output gradient
times input. If it takes no more memory than the products of all pairs of positions, it is formed
and kept. Otherwise its norm follows from these products, and the sum over records from one product
at the end (Bu et al., 2022 and 2023).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Contribution:
    """What a unit adds to a step.

    Attributes:
        squared_norms: of each record's gradient in the unit's parameters, shape (runs, n).
        write_sums: takes the scale of each record, shape (runs, n), and a slice of the buffer,
            shape (runs, the unit's parameters), which it overwrites with the scaled sum.
    """

    squared_norms: Tensor
    write_sums: Callable[[Tensor, Tensor], None]


def kept(gradients: Tensor) -> Contribution:
    """The contribution of per-record gradients, shape (runs, n, width)."""

    def write(scales: Tensor, out: Tensor) -> None:
        out.copy_(torch.bmm(scales.unsqueeze(1), gradients).squeeze(1))

    # vector_norm would lose digits over long rows.
    return Contribution(gradients.square().sum(dim=2), write)


def joined(weight: Contribution, bias: Contribution | None, width: int) -> Contribution:
    """The contribution of a layer with a bias, whose parameters follow the weight's `width`."""
    if bias is None:
        return weight

    def write(scales: Tensor, out: Tensor) -> None:
        weight.write_sums(scales, out[:, :width])
        bias.write_sums(scales, out[:, width:])

    return Contribution(weight.squared_norms + bias.squared_norms, write)


def keeps_gradients(positions: int, inputs: int, outputs: int) -> bool:
    """Whether a record's gradient takes no more memory and time than the products of pairs.

    Args:
        positions: L, at which the weight is used.
        inputs: D, the numbers that an output at one position depends on.
        outputs: O, the output's numbers at one position.
    """
    return outputs * inputs <= positions * (outputs + inputs)


def linear_contribution(inputs: Tensor, gradient: Tensor, *, bias: bool) -> Contribution:
    """The contribution of a linear layer.

    Args:
        inputs: shape (runs, n, L, D).
        gradient: in the outputs, shape (runs, n, L, O).
        bias: whether the layer has one.
    """
    _, _, length, width_in = inputs.shape
    width_out = gradient.shape[3]

    def write(scales: Tensor, out: Tensor) -> None:
        scaled = (gradient * scales[:, :, None, None]).flatten(1, 2)
        product = torch.bmm(scaled.transpose(1, 2), inputs.flatten(1, 2))
        out.copy_(product.flatten(1))

    if keeps_gradients(length, width_in, width_out):
        weight = kept((gradient.transpose(2, 3) @ inputs).flatten(2))
    else:
        weight = Contribution(_pair_products(inputs, gradient), write)
    offset = kept(gradient.sum(dim=2)) if bias else None
    return joined(weight, offset, width_in * width_out)


def _pair_products(inputs: Tensor, gradient: Tensor) -> Tensor:
    """Squared norms of sums of outer products, shape (runs, n)."""
    if inputs.shape[2] == 1:
        return (inputs.square().sum(dim=3) * gradient.square().sum(dim=3)).squeeze(2)
    pairs = inputs @ inputs.transpose(2, 3)
    pairs *= gradient @ gradient.transpose(2, 3)
    # Rounding may leave a norm near zero negative.
    return pairs.sum(dim=(2, 3)).clamp_(min=0.0)
