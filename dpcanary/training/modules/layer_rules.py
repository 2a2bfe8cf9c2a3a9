"""Each kind of layer's contribution to clipped gradient sums, from its inputs and output gradients.

`_RULES` has a rule for each kind. The gradients of all calls of a layer are added before any norm
is taken.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.functional import group_norm, layer_norm, pad, rms_norm
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils._pytree import tree_leaves

from dpcanary.training.modules.recording import Call, Dims, Unit, Used, views_of


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


def _kept(gradients: Tensor) -> Contribution:
    """The contribution of per-record gradients, shape (runs, n, width)."""

    def write(scales: Tensor, out: Tensor) -> None:
        out.copy_(torch.bmm(scales.unsqueeze(1), gradients).squeeze(1))

    # vector_norm would lose digits over long rows.
    return Contribution(gradients.square().sum(dim=2), write)


def _with_bias(weight: Contribution, bias: Tensor | None, width: int) -> Contribution:
    """Adds the bias's per-record gradients; its parameters follow the weight's `width`."""
    if bias is None:
        return weight
    of_bias = _kept(bias)

    def write(scales: Tensor, out: Tensor) -> None:
        weight.write_sums(scales, out[:, :width])
        of_bias.write_sums(scales, out[:, width:])

    return Contribution(weight.squared_norms + of_bias.squared_norms, write)


def _keeps_gradients(positions: int, inputs: int, outputs: int) -> bool:
    """Whether a record's gradient takes no more memory and time than the products of pairs.

    The weight is used at so many positions, with so many inputs and outputs at each.
    """
    return outputs * inputs <= positions * (outputs + inputs)


def _total(of_calls: Sequence[Tensor]) -> Tensor:
    """The sum over the calls of a layer."""
    return torch.stack([*of_calls]).sum(dim=0) if of_calls[1:] else of_calls[0]


def _positions(tensors: Sequence[Tensor]) -> Tensor:
    """Joins shapes (runs, n, ..., width) to (runs, n, positions of all calls, width)."""
    parts = [t.unsqueeze(2) if t.dim() == 3 else t.flatten(2, -2) for t in tensors]
    return torch.cat(parts, dim=2) if parts[1:] else parts[0]


def linear(layer: nn.Module, inputs: list[Tensor], gradients: list[Tensor]) -> Contribution:
    """The contribution of a linear layer."""
    x, gradient = _positions(inputs), _positions(gradients)
    (length, width_in), width_out = x.shape[2:], gradient.shape[3]

    def write(scales: Tensor, out: Tensor) -> None:
        scaled = (gradient * scales[:, :, None, None]).flatten(1, 2)
        product = torch.bmm(scaled.transpose(1, 2), x.flatten(1, 2))
        out.copy_(product.flatten(1))

    if _keeps_gradients(length, width_in, width_out):
        weight = _kept((gradient.transpose(2, 3) @ x).flatten(2))
    else:
        weight = Contribution(_pair_products(x, gradient), write)
    bias = gradient.sum(dim=2) if layer.bias is not None else None
    return _with_bias(weight, bias, width_in * width_out)


def _pair_products(inputs: Tensor, gradient: Tensor) -> Tensor:
    """Squared norms of sums of outer products, shape (runs, n)."""
    if inputs.shape[2] == 1:
        return (inputs.square().sum(dim=3) * gradient.square().sum(dim=3)).squeeze(2)
    pairs = inputs @ inputs.transpose(2, 3)
    pairs *= gradient @ gradient.transpose(2, 3)
    # Rounding may leave a norm near zero negative.
    return pairs.sum(dim=(2, 3)).clamp_(min=0.0)


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_SUMS: dict[int, Callable[..., Tensor]] = {1: conv1d_weight, 2: conv2d_weight, 3: conv3d_weight}
# Copies of a layer's inputs and outputs that a step holds anyway.
_COPIES = 4
# Bytes of the patches that are held at once; on a CPU they stay in the cache.
_CONVOLUTION_CPU_BYTES, _CONVOLUTION_GPU_BYTES = 1 << 21, 1 << 28


class _Geometry(NamedTuple):
    """Arguments with two dimensions or more: in one dimension, a first one of size 1 is added."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def convolution(
    layer: nn.Module, inputs: list[Tensor], gradients: list[Tensor]
) -> Contribution | None:
    """The contribution of a convolution; None if it is called in a way that has no rule."""
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    if layer.weight.dim() != gradients[0].dim() - 1:
        return None
    first = gradients[0]
    runs, records = first.shape[:2]
    geometry = _geometry_of(layer)
    patch, outputs = layer.weight[0].numel(), layer.out_channels // layer.groups
    calls = [*zip(inputs, gradients, strict=True)]
    # The gradients of several calls are kept, if they take no more memory than the calls.
    kept = sum(x[0, 0].numel() + g[0, 0].numel() for x, g in calls)
    if calls[1:] and layer.weight.numel() > _COPIES * kept:
        return None
    if calls[1:] or _keeps_gradients(first[0, 0, 0].numel(), patch, outputs):
        parts = (
            _record_gradients(geometry, _padded(layer, x.flatten(0, 1)), g.flatten(0, 1))
            for x, g in calls
        )
        total = reduce(Tensor.add_, parts)
        weight = _kept_by_offset(layer, total.view(len(total), runs, records, -1))
    else:
        padded = _padded(layer, inputs[0].flatten(0, 1))
        norms = _convolution_pair_products(geometry, padded, first.flatten(0, 1))
        weight = Contribution(norms.view(runs, records), _later_sums(layer, padded, first))
    bias = None
    if layer.bias is not None:
        bias = _total([g.flatten(3).sum(dim=3) for g in gradients])
    return _with_bias(weight, bias, layer.weight.numel())


def _geometry_of(layer: Convolution) -> _Geometry:
    row = (1,) if len(layer.kernel_size) == 1 else ()
    return _Geometry(
        row + layer.kernel_size, row + layer.stride, row + layer.dilation, layer.groups
    )


def _padded(layer: Convolution, inputs: Tensor) -> Tensor:
    amounts = layer._reversed_padding_repeated_twice
    if not any(amounts):
        return inputs
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return pad(inputs, amounts, mode=mode)


def _chunks(
    geometry: _Geometry, inputs: Tensor, gradient: Tensor
) -> Iterator[tuple[slice, list[Tensor], Tensor]]:
    """A few records at a time, as many as fit in memory.

    Yields the records; for each offset along the first kernel dimension, the patches, shape
    (m, D, L) for m records times groups; and the gradient, shape (m, channels out of a group, L).
    """
    if inputs.dim() == 3:
        inputs, gradient = inputs.unsqueeze(2), gradient.unsqueeze(2)
    size = inputs[0].numel() * inputs.element_size()
    for kernel, stride in zip(geometry.kernel[1:], geometry.stride[1:], strict=True):
        size = size * kernel // stride
    limit = _CONVOLUTION_GPU_BYTES if inputs.is_cuda else _CONVOLUTION_CPU_BYTES
    step = max(1, limit // max(size, 1))
    for start in range(0, len(inputs), step):
        records = slice(start, start + step)
        some = gradient[records]
        patches = _patches(geometry, inputs[records], gradient.shape[2])
        yield records, patches, some.reshape(len(some) * geometry.groups, -1, some[0, 0].numel())


def _patches(geometry: _Geometry, inputs: Tensor, rows_out: int) -> list[Tensor]:
    """The patches of each offset along the first dimension, shape (records x groups, D, L)."""
    kernel, stride, dilation = geometry.kernel[0], geometry.stride[0], geometry.dilation[0]
    rows = rows_out + dilation * (kernel - 1) // stride  # of each phase
    surplus = inputs.shape[2] - rows * stride
    if surplus:
        inputs = pad(inputs, [0, 0] * (inputs.dim() - 3) + [0, -surplus])
    windows = inputs.reshape(*inputs.shape[:2], rows, stride, *inputs.shape[3:])
    trailing = inputs.dim() - 3
    for i in range(trailing):
        extent = geometry.dilation[i + 1] * (geometry.kernel[i + 1] - 1) + 1
        windows = windows.unfold(4 + i, extent, geometry.stride[i + 1])
        windows = windows[..., :: geometry.dilation[i + 1]]
    # (n, channels, rows, phase, places..., kernel...) to (n, channels, kernel..., phase, rows, ...)
    position_axes, kernels = range(4, 4 + trailing), range(4 + trailing, 4 + 2 * trailing)
    across = math.prod(windows.shape[i] for i in position_axes)
    laid = windows.permute(0, 1, *kernels, 3, 2, *position_axes).contiguous()
    laid = laid.view(len(inputs) * geometry.groups, -1, stride, rows, across)
    shifts = [dilation * i for i in range(kernel)]
    return [
        laid[:, :, shift % stride, shift // stride : shift // stride + rows_out].flatten(2)
        for shift in shifts
    ]


def _record_gradients(geometry: _Geometry, inputs: Tensor, gradient: Tensor) -> Tensor:
    """Each record's gradient in the weight, in an order that matrix products can write.

    Its shape is (offsets along the first kernel dimension, records x groups, D, channels out of a
    group).
    """
    groups = geometry.groups
    outputs, width = gradient.shape[1] // groups, inputs.shape[1] // groups
    width *= math.prod(geometry.kernel[1:])
    gradients = inputs.new_empty(geometry.kernel[0], len(inputs) * groups, width, outputs)
    for records, patches, slopes in _chunks(geometry, inputs, gradient):
        for sums, patch in zip(gradients, patches, strict=True):
            target = sums[records.start * groups : records.stop * groups]
            torch.bmm(patch, slopes.transpose(1, 2), out=target)
    return gradients


def _kept_by_offset(layer: Convolution, gradients: Tensor) -> Contribution:
    """The contribution of gradients from `_record_gradients`, shape (offsets, runs, n, ...)."""
    channels, outputs = layer.in_channels // layer.groups, layer.out_channels // layer.groups

    def write(scales: Tensor, out: Tensor) -> None:
        sums = scales.unsqueeze(1) @ gradients  # (offsets, runs, 1, groups x D x outputs)
        split = sums.view(*sums.shape[:2], layer.groups, channels, -1, outputs)
        out.copy_(split.permute(1, 2, 5, 3, 0, 4).flatten(1))

    norms = torch.stack([part.square().sum(dim=2) for part in gradients]).sum(dim=0)
    return Contribution(norms, write)


def _convolution_pair_products(geometry: _Geometry, inputs: Tensor, gradient: Tensor) -> Tensor:
    """Squared norm of each record's gradient in the weight, shape (records,)."""
    norms = inputs.new_empty(len(inputs))
    for records, patches, slopes in _chunks(geometry, inputs, gradient):
        pairs = torch.bmm(patches[0].transpose(1, 2), patches[0])
        for patch in patches[1:]:
            pairs.baddbmm_(patch.transpose(1, 2), patch)
        pairs *= torch.bmm(slopes.transpose(1, 2), slopes)
        torch.sum(pairs.view(-1, geometry.groups * pairs[0].numel()), dim=1, out=norms[records])
    return norms.clamp_(min=0.0)  # rounding may leave a norm near zero negative


def _later_sums(
    layer: Convolution, inputs: Tensor, gradient: Tensor
) -> Callable[[Tensor, Tensor], None]:
    """Writes sums from inputs, shape (runs x n, ...), and the gradient, shape (runs, n, ...)."""
    settings = {"stride": layer.stride, "dilation": layer.dilation, "groups": layer.groups}

    def sum_of_run(x: Tensor, scaled: Tensor) -> Tensor:
        return _SUMS[x.dim() - 2](x, layer.weight.shape, scaled, **settings)

    def write(scales: Tensor, out: Tensor) -> None:
        scaled = gradient * scales.view(*scales.shape, *[1] * (gradient.dim() - 2))
        by_run = inputs.view(*gradient.shape[:2], *inputs.shape[1:])
        is_single = len(out) == 1
        sums = (
            sum_of_run(by_run[0], scaled[0])[None]
            if is_single
            else vmap(sum_of_run)(by_run, scaled)
        )
        out.copy_(sums.flatten(1))

    return write


def _norm(layer: nn.Module, inputs: list[Tensor], gradients: list[Tensor]) -> Contribution:
    """Norm layers multiply a normalised input by a weight, and may add a bias."""
    calls = []
    for x, gradient in zip(inputs, gradients, strict=True):
        offset = [] if getattr(layer, "bias", None) is None else [gradient]
        parts = [gradient * _normalised(layer, x), *offset]
        calls.append(torch.cat([_summed(layer, part) for part in parts], dim=2))
    return _kept(_total(calls))


def _normalised(layer: nn.Module, x: Tensor) -> Tensor:
    if isinstance(layer, nn.LayerNorm):
        return layer_norm(x, layer.normalized_shape, eps=layer.eps)
    if isinstance(layer, nn.RMSNorm):
        return rms_norm(x, layer.normalized_shape, eps=layer.eps)
    assert isinstance(layer, nn.GroupNorm | _InstanceNorm)
    groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else layer.num_features
    return group_norm(x.flatten(0, 1), groups, eps=layer.eps).view(x.shape)


def _summed(layer: nn.Module, part: Tensor) -> Tensor:
    """Sums over the positions that share a parameter; shape (runs, n, parameters)."""
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        between = tuple(range(2, part.dim() - len(layer.normalized_shape)))
        return (part.sum(dim=between) if between else part).flatten(2)
    return part.flatten(3).sum(dim=3) if part.dim() > 3 else part


# Bytes of the products of pairs of positions that are held at once.
_BYTES_OF_PAIRS = 1 << 24


def _embedding(
    layer: nn.Module, inputs: list[Tensor], gradients: list[Tensor]
) -> Contribution | None:
    assert isinstance(layer, nn.Embedding)
    if layer.scale_grad_by_freq:
        return None
    tokens = _positions([x.unsqueeze(-1) for x in inputs]).squeeze(3)
    slopes = _positions(gradients)
    if layer.padding_idx is not None:
        slopes = slopes.masked_fill((tokens == layer.padding_idx).unsqueeze(3), 0.0)
    norms = _token_norms(tokens.flatten(0, 1), slopes.flatten(0, 1)).view(slopes.shape[:2])

    def write(scales: Tensor, out: Tensor) -> None:
        scaled = slopes * scales[:, :, None, None]
        for run, rows in enumerate(out.view(-1, *layer.weight.shape)):
            rows.zero_().index_add_(0, tokens[run].flatten(), scaled[run].flatten(0, 1))

    return Contribution(norms, write)


def _token_norms(tokens: Tensor, gradient: Tensor) -> Tensor:
    """Squared norms, shape (records,), from tokens (records, L) and gradients (records, L, width).

    The gradients of a token's positions are added before the norm is taken, so the norm counts
    all pairs of positions with the same token.
    """
    step = max(1, _BYTES_OF_PAIRS // (4 * tokens.shape[1] ** 2))
    norms = []
    for words, slopes in zip(torch.split(tokens, step), torch.split(gradient, step), strict=True):
        differ = words.unsqueeze(1) != words.unsqueeze(2)
        pairs = slopes @ slopes.transpose(1, 2)
        norms.append(pairs.masked_fill_(differ, 0.0).sum(dim=(1, 2)))
    return torch.cat(norms).clamp_(min=0.0)  # rounding may leave a norm near zero negative


# Bytes of a run's per-record gradients that are held at once.
_CPU_BYTES, _GPU_BYTES = 1 << 24, 1 << 28


def any_layer(
    unit: Unit, layer: nn.Module, parameters: Tensor, used: Sequence[Used]
) -> Contribution:
    """The contribution of a layer that has no rule of its own.

    The norms take a backward pass per record, for a few records at a time. The sums take one more
    pass for all records. No per-record gradient is kept.
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

        of_row: Tensor = vjp(outputs, row)[1](pulled)[0]
        return of_row

    def squared_norms(row: Tensor, inputs: list[Tensor], gradients: list[Tensor]) -> Tensor:
        def of_record(inputs: list[Tensor], gradients: list[Tensor]) -> Tensor:
            batch = _placed(Tensor.unsqueeze, inputs, input_dims)
            pulled = _placed(Tensor.unsqueeze, gradients, output_dims)
            return gradient(row, batch, pulled).square().sum()

        in_dims = ([None if dim is None else 0 for dim in input_dims], 0)
        return vmap(of_record, in_dims, chunk_size=chunk)(inputs, gradients)

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
        return vmap(function)(parameters, inputs, gradients)
    return function(parameters[0], [x[0] for x in inputs], [g[0] for g in gradients])[None]


def _placed(
    place: Callable[[Tensor, int], Tensor], tensors: list[Tensor], dims: Dims
) -> list[Tensor]:
    """Puts the records of each tensor into the dimension in which the layer expects them."""
    return [x if dim is None else place(x, dim) for x, dim in zip(tensors, dims, strict=True)]


def _outputs(
    layer: nn.Module, parameters: dict[str, Tensor], calls: Sequence[Call], inputs: list[Tensor]
) -> list[Tensor]:
    """The outputs of the calls on which a loss may depend."""
    outputs: list[Tensor] = []
    for call in calls:
        count = len(call.tensors)
        args, kwargs = call.with_tensors(inputs[:count])
        inputs = inputs[count:]
        leaves = tree_leaves(functional_call(layer, parameters, args, kwargs))
        outputs += [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    return outputs


_Rule = Callable[[nn.Module, list[Tensor], list[Tensor]], Contribution | None]
# How each kind of layer contributes. A rule takes the inputs and the output gradients of all calls,
# each of shape (runs, n, ...); it gives None for calls that need `any_layer`.
_RULES: dict[type[nn.Module], _Rule] = {
    nn.Linear: linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), convolution),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm, nn.GroupNorm), _norm),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _norm),
    nn.Embedding: _embedding,
}


def contribution(
    unit: Unit, layer: nn.Module, parameters: Tensor, used: Sequence[Used]
) -> Contribution:
    """What a unit adds to a step.

    Args:
        unit: the layer's place in the module.
        layer: the submodule.
        parameters: the unit's, shape (runs, the unit's parameters).
        used: its calls, at least one; their gradients are added before any norm is taken.
    """
    rule, by_rule = _rule(layer), None
    if rule is not None and all(len(u.inputs) == len(u.gradients) == 1 for u in used):
        by_rule = rule(layer, [u.inputs[0] for u in used], [u.gradients[0] for u in used])
    return by_rule or any_layer(unit, layer, parameters, used)


def _rule(layer: nn.Module) -> _Rule | None:
    """The rule for a layer that computes what PyTorch's does, from parameters of its own."""
    for kind, rule in _RULES.items():
        if isinstance(layer, kind) and type(layer).forward is kind.forward:
            plain = {"weight", "bias"} >= {name for name, _ in layer.named_parameters()}
            return rule if plain and getattr(layer, "weight", None) is not None else None
    return None
