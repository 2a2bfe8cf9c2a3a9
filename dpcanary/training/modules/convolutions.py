"""Clipped gradient sums of convolutions, which are linear layers over patches.

Patches overlap, so unfolding all of them would multiply the input's size by the kernel's. Here all
dimensions except the first are unfolded. Along the first, the patches of each kernel offset are a
contiguous range of the same rows, which a matrix product reads without a copy. A stride of s along
the first dimension splits the rows into s phases.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import pad
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from dpcanary.training.modules.outer_products import Contribution, joined, keeps_gradients, kept

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_SUMS: dict[int, Callable[..., Tensor]] = {1: conv1d_weight, 2: conv2d_weight, 3: conv3d_weight}
# Bytes of the patches that are held at once; on a CPU they stay in the cache.
_CPU_BYTES, _GPU_BYTES = 1 << 21, 1 << 28


class _Geometry(NamedTuple):
    """Of at least two dimensions: a one-dimensional convolution gets a first one of size 1."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def convolution_contribution(layer: Convolution, inputs: Tensor, gradient: Tensor) -> Contribution:
    """The contribution of a convolution.

    Args:
        layer: the convolution.
        inputs: shape (runs, n, channels in, ...).
        gradient: in the outputs, shape (runs, n, channels out, ...).
    """
    runs, records = gradient.shape[:2]
    padded = _padded(layer, inputs.flatten(0, 1))
    flat, geometry = gradient.flatten(0, 1), _geometry_of(layer)
    patch, outputs = layer.weight[0].numel(), layer.out_channels // layer.groups
    positions = flat[0, 0].numel()
    if keeps_gradients(positions, patch, outputs):
        gradients = _record_gradients(geometry, padded, flat)
        weight = _kept(layer, gradients.view(len(gradients), runs, records, -1))
    else:
        norms = _pair_products(geometry, padded, flat).view(runs, records)
        weight = Contribution(norms, _later_sums(layer, padded, gradient))
    bias = kept(gradient.flatten(3).sum(dim=3)) if layer.bias is not None else None
    return joined(weight, bias, layer.weight.numel())


def contribution_of_calls(
    layer: Convolution, inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Contribution:
    """The contribution of a convolution that is called several times.

    Args:
        layer: the convolution.
        inputs: of each call, shape (runs, n, channels in, ...).
        gradients: in the outputs of each call, shape (runs, n, channels out, ...).
    """
    runs, records = gradients[0].shape[:2]
    geometry = _geometry_of(layer)
    parts = (
        _record_gradients(geometry, _padded(layer, x.flatten(0, 1)), own.flatten(0, 1))
        for x, own in zip(inputs, gradients, strict=True)
    )
    total = reduce(Tensor.add_, parts)
    weight = _kept(layer, total.view(len(total), runs, records, -1))
    if layer.bias is None:
        return weight
    bias = kept(torch.stack([own.flatten(3).sum(dim=3) for own in gradients]).sum(dim=0))
    return joined(weight, bias, layer.weight.numel())


def _geometry_of(layer: Convolution) -> _Geometry:
    one = (1,) if len(layer.kernel_size) == 1 else ()
    return _Geometry(
        one + layer.kernel_size, one + layer.stride, one + layer.dilation, layer.groups
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

    Yields:
        The records; for each offset along the first kernel dimension, the patches, shape (m, D, L)
        for m records times groups; and the gradient, shape (m, channels out of a group, L).
    """
    if inputs.dim() == 3:
        inputs, gradient = inputs.unsqueeze(2), gradient.unsqueeze(2)
    size = inputs[0].numel() * inputs.element_size()
    for kernel, stride in zip(geometry.kernel[1:], geometry.stride[1:], strict=True):
        size = size * kernel // stride
    limit = _GPU_BYTES if inputs.is_cuda else _CPU_BYTES
    step = max(1, limit // max(size, 1))
    for start in range(0, len(inputs), step):
        records = slice(start, start + step)
        own = gradient[records]
        patches = _patches(geometry, inputs[records], gradient.shape[2])
        yield records, patches, own.reshape(len(own) * geometry.groups, -1, own[0, 0].numel())


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
    places, kernels = range(4, 4 + trailing), range(4 + trailing, 4 + 2 * trailing)
    across = math.prod(windows.shape[i] for i in places)
    laid = windows.permute(0, 1, *kernels, 3, 2, *places).contiguous()
    laid = laid.view(len(inputs) * geometry.groups, -1, stride, rows, across)
    shifts = [dilation * i for i in range(kernel)]
    return [
        laid[:, :, shift % stride, shift // stride : shift // stride + rows_out].flatten(2)
        for shift in shifts
    ]


def _record_gradients(geometry: _Geometry, inputs: Tensor, gradient: Tensor) -> Tensor:
    """Each record's gradient in the weight, in an order that matrix products can write.

    Returns:
        Shape (offsets along the first kernel dimension, records x groups, D, channels out of a
        group).
    """
    groups = geometry.groups
    outputs, width = gradient.shape[1] // groups, inputs.shape[1] // groups
    width *= math.prod(geometry.kernel[1:])
    gradients = inputs.new_empty(geometry.kernel[0], len(inputs) * groups, width, outputs)
    for records, patches, own in _chunks(geometry, inputs, gradient):
        for sums, patch in zip(gradients, patches, strict=True):
            target = sums[records.start * groups : records.stop * groups]
            torch.bmm(patch, own.transpose(1, 2), out=target)
    return gradients


def _kept(layer: Convolution, gradients: Tensor) -> Contribution:
    """The contribution of gradients from `_record_gradients`, shape (offsets, runs, n, ...)."""
    channels, outputs = layer.in_channels // layer.groups, layer.out_channels // layer.groups

    def write(scales: Tensor, out: Tensor) -> None:
        sums = scales.unsqueeze(1) @ gradients  # (offsets, runs, 1, groups x D x outputs)
        split = sums.view(*sums.shape[:2], layer.groups, channels, -1, outputs)
        out.copy_(split.permute(1, 2, 5, 3, 0, 4).flatten(1))

    norms = torch.stack([part.square().sum(dim=2) for part in gradients]).sum(dim=0)
    return Contribution(norms, write)


def _pair_products(geometry: _Geometry, inputs: Tensor, gradient: Tensor) -> Tensor:
    """Squared norm of each record's gradient in the weight, shape (records,)."""
    norms = inputs.new_empty(len(inputs))
    for records, patches, own in _chunks(geometry, inputs, gradient):
        pairs = torch.bmm(patches[0].transpose(1, 2), patches[0])
        for patch in patches[1:]:
            pairs.baddbmm_(patch.transpose(1, 2), patch)
        pairs *= torch.bmm(own.transpose(1, 2), own)
        torch.sum(pairs.view(-1, geometry.groups * pairs[0].numel()), dim=1, out=norms[records])
    return norms.clamp_(min=0.0)  # rounding may leave a norm near zero negative


def _later_sums(
    layer: Convolution, inputs: Tensor, gradient: Tensor
) -> Callable[[Tensor, Tensor], None]:
    """Inputs have shape (runs x n, ...), the gradient (runs, n, ...)."""
    settings = {"stride": layer.stride, "dilation": layer.dilation, "groups": layer.groups}

    def one(own: Tensor, scaled: Tensor) -> Tensor:
        return _SUMS[own.dim() - 2](own, layer.weight.shape, scaled, **settings)

    def write(scales: Tensor, out: Tensor) -> None:
        scaled = gradient * scales.view(*scales.shape, *[1] * (gradient.dim() - 2))
        by_run = inputs.view(*gradient.shape[:2], *inputs.shape[1:])
        sums = one(by_run[0], scaled[0])[None] if len(out) == 1 else vmap(one)(by_run, scaled)
        out.copy_(sums.flatten(1))

    return write
