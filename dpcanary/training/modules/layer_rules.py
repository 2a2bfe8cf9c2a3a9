"""Each kind of layer's contribution to clipped gradient sums, from its inputs and output gradients.

Every rule takes the inputs and the output gradients of all calls of a layer, each of shape
(runs, n, ...). The gradients of the calls are added before any norm is taken.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, layer_norm, rms_norm
from torch.nn.modules.instancenorm import _InstanceNorm

from dpcanary.training.modules.any_layer import Used, any_layer
from dpcanary.training.modules.convolutions import contribution_of_calls, convolution_contribution
from dpcanary.training.modules.outer_products import Contribution, kept, linear_contribution
from dpcanary.training.modules.recording import Unit

_Rule = Callable[[nn.Module, list[Tensor], list[Tensor]], Contribution | None]

# Bytes of the products of pairs of positions that are held at once.
_BYTES_OF_PAIRS = 1 << 24
# Copies of a layer's inputs and outputs that a step holds anyway.
_COPIES = 4


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
    rule, found = _rule(layer), None
    if rule is not None and all(len(u.inputs) == len(u.gradients) == 1 for u in used):
        found = rule(layer, [u.inputs[0] for u in used], [u.gradients[0] for u in used])
    return found or any_layer(unit, layer, parameters, used)


def _rule(layer: nn.Module) -> _Rule | None:
    """The rule for a layer that computes what PyTorch's does, from parameters of its own."""
    for kind, rule in _RULES.items():
        if isinstance(layer, kind) and type(layer).forward is kind.forward:
            plain = {"weight", "bias"} >= {name for name, _ in layer.named_parameters()}
            return rule if plain and getattr(layer, "weight", None) is not None else None
    return None


def _linear(layer: nn.Module, inputs: list[Tensor], gradients: list[Tensor]) -> Contribution:
    rows, own = _positions(inputs), _positions(gradients)
    return linear_contribution(rows, own, bias=layer.bias is not None)


def _positions(tensors: list[Tensor]) -> Tensor:
    """Joins shapes (runs, n, ..., width) to (runs, n, positions of all calls, width)."""
    parts = [t.unsqueeze(2) if t.dim() == 3 else t.flatten(2, -2) for t in tensors]
    return torch.cat(parts, dim=2) if parts[1:] else parts[0]


def _convolution(
    layer: nn.Module, inputs: list[Tensor], gradients: list[Tensor]
) -> Contribution | None:
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    if layer.weight.dim() != gradients[0].dim() - 1:
        return None
    if not inputs[1:]:
        return convolution_contribution(layer, inputs[0], gradients[0])
    # The gradients of several calls are kept, if they take no more memory than the calls.
    seen = sum(
        x[0, 0].numel() + own[0, 0].numel() for x, own in zip(inputs, gradients, strict=True)
    )
    if layer.weight.numel() > _COPIES * seen:
        return None
    return contribution_of_calls(layer, inputs, gradients)


def _norm(layer: nn.Module, inputs: list[Tensor], gradients: list[Tensor]) -> Contribution:
    """Norm layers multiply a normalised input by a weight, and may add a bias."""
    calls = []
    for x, gradient in zip(inputs, gradients, strict=True):
        offset = [] if getattr(layer, "bias", None) is None else [gradient]
        parts = [gradient * _normalised(layer, x), *offset]
        calls.append(torch.cat([_summed(layer, part) for part in parts], dim=2))
    return kept(torch.stack(calls).sum(dim=0) if calls[1:] else calls[0])


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


def _embedding(
    layer: nn.Module, inputs: list[Tensor], gradients: list[Tensor]
) -> Contribution | None:
    assert isinstance(layer, nn.Embedding)
    if layer.scale_grad_by_freq:
        return None
    tokens = _positions([x.unsqueeze(-1) for x in inputs]).squeeze(3)
    own = _positions(gradients)
    if layer.padding_idx is not None:
        own = own.masked_fill((tokens == layer.padding_idx).unsqueeze(3), 0.0)
    norms = _token_norms(tokens.flatten(0, 1), own.flatten(0, 1)).view(own.shape[:2])

    def write(scales: Tensor, out: Tensor) -> None:
        scaled = own * scales[:, :, None, None]
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
    for words, own in zip(torch.split(tokens, step), torch.split(gradient, step), strict=True):
        differ = words.unsqueeze(1) != words.unsqueeze(2)
        norms.append((own @ own.transpose(1, 2)).masked_fill_(differ, 0.0).sum(dim=(1, 2)))
    return torch.cat(norms).clamp_(min=0.0)  # rounding may leave a norm near zero negative


_RULES: dict[type[nn.Module], _Rule] = {
    nn.Linear: _linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm, nn.GroupNorm), _norm),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _norm),
    nn.Embedding: _embedding,
}
