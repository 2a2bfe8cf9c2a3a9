"""Clipped gradient sums of any layer, by automatic differentiation of that layer alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_leaves

from dpcanary.training.modules.outer_products import Contribution
from dpcanary.training.modules.recording import Call, Dims

# Gradients of single records that are held at once may take this many bytes of a run.
_CPU_BYTES, _GPU_BYTES = 1 << 24, 1 << 28


@dataclass(frozen=True)
class Used:
    """A call of a unit, and the gradients in its outputs.

    Attributes:
        call: the call.
        inputs: its input tensors; their first dimension is the runs, the second, where they have
            one, the records.
        gradients: in its outputs, shape (runs, n, ...).
    """

    call: Call
    inputs: list[Tensor]
    gradients: list[Tensor]


@dataclass(frozen=True)
class Place:
    """What a rule needs to know of a unit.

    Attributes:
        layer: the submodule.
        parameters: its part of the buffer, shape (runs, the unit's parameters).
        input_dims: as in `Unit`.
        output_dims: as in `Unit`.
    """

    layer: nn.Module
    parameters: Tensor
    input_dims: Dims
    output_dims: Dims


def any_layer(place: Place, used: Sequence[Used]) -> Contribution:
    """The contribution of a layer that no other rule is for.

    The norms take one backward pass for every record, a few records at a time; the sums one more
    for all of them. No record's gradient is kept.

    Args:
        place: the unit.
        used: its calls; their gradients add up before any norm is taken.
    """
    layer = _Layer(place, used)
    inputs = [tensor for u in used for tensor in u.inputs]
    gradients = [tensor for u in used for tensor in u.gradients]
    norms = _over_runs(layer.squared_norms, place.parameters, inputs, gradients)

    def write(scales: Tensor, out: Tensor) -> None:
        scaled = [g * scales.view(*scales.shape, *[1] * (g.dim() - 2)) for g in gradients]
        out.copy_(_over_runs(layer.summed, place.parameters, inputs, scaled))

    return Contribution(norms, write)


def _over_runs(
    function: Callable[[Tensor, list[Tensor], list[Tensor]], Tensor],
    parameters: Tensor,
    inputs: list[Tensor],
    gradients: list[Tensor],
) -> Tensor:
    """Applies a function of one run to every run."""
    if len(parameters) > 1:
        stacked: Tensor = vmap(function)(parameters, inputs, gradients)
        return stacked
    return function(parameters[0], [x[0] for x in inputs], [g[0] for g in gradients])[None]


class _Layer:
    """The layer as a function of one run's parameters."""

    def __init__(self, place: Place, used: Sequence[Used]) -> None:
        self._layer = place.layer
        self._calls = [u.call for u in used]
        self._input_dims = place.input_dims * len(used)
        self._output_dims = place.output_dims * len(used)
        limit = _GPU_BYTES if place.parameters.is_cuda else _CPU_BYTES
        self._chunk = max(1, limit // (4 * place.parameters.shape[1]))

    def squared_norms(self, row: Tensor, inputs: list[Tensor], gradients: list[Tensor]) -> Tensor:
        """Squared norm of each record's gradient; the records are the first dimension."""

        def of_record(inputs: list[Tensor], gradients: list[Tensor]) -> Tensor:
            batch = [
                x if dim is None else x.unsqueeze(dim)
                for x, dim in zip(inputs, self._input_dims, strict=True)
            ]
            pulled = [
                g.unsqueeze(dim or 0) for g, dim in zip(gradients, self._output_dims, strict=True)
            ]
            return self._gradient(row, batch, pulled).square().sum()

        in_dims = ([None if dim is None else 0 for dim in self._input_dims], 0)
        norms: Tensor = vmap(of_record, in_dims, chunk_size=self._chunk)(inputs, gradients)
        return norms

    def summed(self, row: Tensor, inputs: list[Tensor], gradients: list[Tensor]) -> Tensor:
        """The sum of the records' gradients."""
        batch = [
            x if dim is None else x.movedim(0, dim)
            for x, dim in zip(inputs, self._input_dims, strict=True)
        ]
        pulled = [
            g.movedim(0, dim or 0) for g, dim in zip(gradients, self._output_dims, strict=True)
        ]
        return self._gradient(row, batch, pulled)

    def _gradient(self, row: Tensor, inputs: list[Tensor], gradients: list[Tensor]) -> Tensor:
        def outputs(row: Tensor) -> list[Tensor]:
            return self._outputs(row, inputs)

        pulled: Tensor = vjp(outputs, row)[1](gradients)[0]
        return pulled

    def _outputs(self, row: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        """What the calls give with these parameters, as far as a loss may depend on it."""
        shapes = {name: p.shape for name, p in self._layer.named_parameters()}
        parts = torch.split(row, [shape.numel() for shape in shapes.values()])
        named = {
            name: part.view(shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }
        found: list[Tensor] = []
        rest = list(inputs)
        for call in self._calls:
            count = len(call.tensors)
            args, kwargs = call.with_tensors(rest[:count])
            rest = rest[count:]
            leaves = tree_leaves(functional_call(self._layer, named, args, kwargs))
            found += [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
        return found
