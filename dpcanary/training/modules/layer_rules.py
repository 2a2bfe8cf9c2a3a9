"""Each kind of layer's contribution to clipped gradient sums, from its inputs and output gradients.

Every rule takes the inputs and the output gradients of all of a layer's calls, each of shape
(runs, n, ...): their gradients add up before any norm is taken.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, layer_norm, rms_norm
from torch.nn.modules.instancenorm import _InstanceNorm

from dpcanary.training.modules.any_layer import Place, Used, any_layer
from dpcanary.training.modules.convolutions import convolution_contribution
from dpcanary.training.modules.outer_products import Contribution, kept, linear_contribution

_Rule = Callable[[nn.Module, list[Tensor], list[Tensor]], Contribution | None]

# Products of pairs of positions, of a few records at a time.
_BYTES_OF_PAIRS = 1 << 24


def contribution(place: Place, used: Sequence[Used]) -> Contribution:
    """What a unit adds to a step.

    Args:
        place: the unit.
        used: its calls, at least one. Their gradients add up before any norm is taken.
    """
    rule = _rule(place.layer)
    if rule is None or any(len(u.inputs) != 1 or len(u.gradients) != 1 for u in used):
        return any_layer(place, used)
    inputs = [u.inputs[0] for u in used]
    gradients = [u.gradients[0] for u in used]
    return rule(place.layer, inputs, gradients) or any_layer(place, used)


def _rule(layer: nn.Module) -> _Rule | None:
    """The rule for a layer, if it computes what PyTorch's does from parameters of its own."""
    for kinds, rule in _RULES.items():
        for kind in kinds:
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
    if inputs[1:] or layer.weight.dim() != gradients[0].dim() - 1:
        return None  # patches of several calls need not be alike
    return convolution_contribution(layer, inputs[0], gradients[0])


def _layer_norm(layer: nn.Module, inputs: list[Tensor], gradients: list[Tensor]) -> Contribution:
    assert isinstance(layer, nn.LayerNorm | nn.RMSNorm)
    shape = list(layer.normalized_shape)

    def one(x: Tensor, gradient: Tensor) -> Tensor:
        if isinstance(layer, nn.RMSNorm):
            parts = [gradient * rms_norm(x, shape, eps=layer.eps)]
        else:
            parts = [gradient * layer_norm(x, shape, eps=layer.eps), gradient]
        parts = parts if getattr(layer, "bias", None) is not None else parts[:1]
        between = tuple(range(2, x.dim() - len(shape)))
        sums = [part.sum(dim=between) if between else part for part in parts]
        return torch.cat([part.flatten(2) for part in sums], dim=2)

    return kept(_added([one(x, g) for x, g in zip(inputs, gradients, strict=True)]))


def _group_norm(layer: nn.Module, inputs: list[Tensor], gradients: list[Tensor]) -> Contribution:
    assert isinstance(layer, nn.GroupNorm | _InstanceNorm)
    groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else layer.num_features

    def one(x: Tensor, gradient: Tensor) -> Tensor:
        normal = group_norm(x.flatten(0, 1), groups, eps=layer.eps).view(x.shape)
        parts = [(gradient * normal), gradient] if layer.bias is not None else [gradient * normal]
        return torch.cat(
            [part.flatten(3).sum(dim=3) if part.dim() > 3 else part for part in parts], 2
        )

    return kept(_added([one(x, g) for x, g in zip(inputs, gradients, strict=True)]))


def _added(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(dim=0) if parts[1:] else parts[0]


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

    A token's rows add up before the norm: pairs of positions with the same token count.
    """
    step = max(1, _BYTES_OF_PAIRS // (4 * tokens.shape[1] ** 2))
    norms = []
    for words, own in zip(torch.split(tokens, step), torch.split(gradient, step), strict=True):
        differ = words.unsqueeze(1) != words.unsqueeze(2)
        norms.append((own @ own.transpose(1, 2)).masked_fill_(differ, 0.0).sum(dim=(1, 2)))
    return torch.cat(norms).clamp_(min=0.0)  # rounding may leave a norm near zero below it


_RULES: dict[tuple[type[nn.Module], ...], _Rule] = {
    (nn.Linear,): _linear,
    (nn.Conv1d, nn.Conv2d, nn.Conv3d): _convolution,
    (nn.LayerNorm, nn.RMSNorm): _layer_norm,
    (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d): _group_norm,
    (nn.Embedding,): _embedding,
}
