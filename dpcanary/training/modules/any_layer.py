"""Clipped gradient sums of any layer, by automatic differentiation of that layer alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_leaves

from dpcanary.training.modules.outer_products import Contribution
from dpcanary.training.modules.recording import Call, Dims, Unit, views_of

# Bytes of a run's per-record gradients that are held at once.
_CPU_BYTES, _GPU_BYTES = 1 << 24, 1 << 28


@dataclass(frozen=True)
class Used:
    """A call of a unit, and the gradients in its outputs.

    Attributes:
        call: the call.
        inputs: its input tensors. Their first dimension is the runs; the second is the records,
            if the tensor has a dimension for them.
        gradients: in its outputs, shape (runs, n, ...).
    """

    call: Call
    inputs: list[Tensor]
    gradients: list[Tensor]


def any_layer(
    unit: Unit, layer: nn.Module, parameters: Tensor, used: Sequence[Used]
) -> Contribution:
    """The contribution of a layer that has no rule of its own.

    The norms take a backward pass per record, for a few records at a time. The sums take one more
    pass for all records. No per-record gradient is kept.

    Args:
        unit: the layer's place in the module.
        layer: the submodule.
        parameters: the unit's, shape (runs, the unit's parameters).
        used: its calls; their gradients are added before any norm is taken.
    """
    inputs = [tensor for u in used for tensor in u.inputs]
    gradients = [tensor for u in used for tensor in u.gradients]
    input_dims, output_dims = unit.input_dims * len(used), unit.output_dims * len(used)
    calls, named = [u.call for u in used], dict(layer.named_parameters())
    limit = _GPU_BYTES if parameters.is_cuda else _CPU_BYTES
    chunk = max(1, limit // (4 * parameters.shape[1]))

    def gradient(row: Tensor, inputs: list[Tensor], pulled: list[Tensor]) -> Tensor:
        def outputs(row: Tensor) -> list[Tensor]:
            return _outputs(layer, views_of(named, row), calls, inputs)

        found: Tensor = vjp(outputs, row)[1](pulled)[0]
        return found

    def squared_norms(row: Tensor, inputs: list[Tensor], gradients: list[Tensor]) -> Tensor:
        def of_record(inputs: list[Tensor], gradients: list[Tensor]) -> Tensor:
            batch = _placed(Tensor.unsqueeze, inputs, input_dims)
            pulled = _placed(Tensor.unsqueeze, gradients, output_dims)
            return gradient(row, batch, pulled).square().sum()

        in_dims = ([None if dim is None else 0 for dim in input_dims], 0)
        norms: Tensor = vmap(of_record, in_dims, chunk_size=chunk)(inputs, gradients)
        return norms

    def summed(row: Tensor, inputs: list[Tensor], gradients: list[Tensor]) -> Tensor:
        def back(x: Tensor, dim: int) -> Tensor:
            return x.movedim(0, dim)

        batch, pulled = _placed(back, inputs, input_dims), _placed(back, gradients, output_dims)
        return gradient(row, batch, pulled)

    def write(scales: Tensor, out: Tensor) -> None:
        scaled = [g * scales.view(*scales.shape, *[1] * (g.dim() - 2)) for g in gradients]
        out.copy_(_over_runs(summed, parameters, inputs, scaled))

    return Contribution(_over_runs(squared_norms, parameters, inputs, gradients), write)


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


def _placed(
    place: Callable[[Tensor, int], Tensor], tensors: list[Tensor], dims: Dims
) -> list[Tensor]:
    """Puts the records of each tensor into the dimension in which the layer expects them."""
    return [x if dim is None else place(x, dim) for x, dim in zip(tensors, dims, strict=True)]


def _outputs(
    layer: nn.Module, parameters: dict[str, Tensor], calls: Iterable[Call], inputs: list[Tensor]
) -> list[Tensor]:
    """The outputs of the calls on which a loss may depend."""
    found: list[Tensor] = []
    for call in calls:
        count = len(call.tensors)
        args, kwargs = call.with_tensors(inputs[:count])
        inputs = inputs[count:]
        leaves = tree_leaves(functional_call(layer, parameters, args, kwargs))
        found += [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    return found
