"""Layers that are replaced by others, which can be differentiated record by record.

What stands in computes the same, with the same parameters in the same order.
"""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax
from torch.nn.utils import skip_init

from dpcanary.training.modules.dropout import KeyedDropout
from dpcanary.training.modules.recurrent import ScannedRecurrence


class LayeredAttention(nn.Module):
    """Does what `torch.nn.MultiheadAttention` does, with parameters of the same order.

    PyTorch's own module computes with its parameters directly; here each projection is a call of
    an `nn.Linear`. If query, key and value differ, each goes through the whole input projection,
    and two thirds of its output are unused.
    """

    def __init__(self, attention: nn.Module) -> None:
        assert isinstance(attention, nn.MultiheadAttention)
        super().__init__()
        weight, bias = attention.in_proj_weight, attention.in_proj_bias
        sizes, device = (weight.shape[1], weight.shape[0]), weight.device
        self.in_proj = skip_init(  # type: ignore[no-untyped-call]
            nn.Linear, *sizes, bias=bias is not None, device=device
        )
        self.in_proj.weight = weight
        if bias is not None:
            self.in_proj.bias = bias
        self.out_proj = attention.out_proj
        self.dropout = KeyedDropout(attention.dropout)
        self.num_heads = attention.num_heads
        self.batch_first = attention.batch_first

    @staticmethod
    def applies_to(module: nn.Module) -> bool:
        """Whether this class can stand in for a module."""
        return (
            type(module) is nn.MultiheadAttention
            and module.in_proj_weight is not None
            and module.bias_k is None
            and not module.add_zero_attn
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # only a hint; the mask is given too
    ) -> tuple[Tensor, Tensor | None]:
        """As `torch.nn.MultiheadAttention.forward`, for batched inputs."""
        projected = self._projections(query, key, value)
        if not self.batch_first:
            projected = [part.transpose(0, 1) for part in projected]
        # Shape (records, heads, positions, width of a head).
        q, k, v = (
            part.reshape(*part.shape[:2], self.num_heads, -1).transpose(1, 2) for part in projected
        )
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(2, 3)
        if attn_mask is not None:
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.view(-1, self.num_heads, *attn_mask.shape[1:])
            scores = scores + _additive(attn_mask, scores)
        if key_padding_mask is not None:
            scores = scores + _additive(key_padding_mask[:, None, None], scores)
        weights = softmax(scores, dim=-1)
        weights = self.dropout(weights)
        mixed = (weights @ v).transpose(1, 2).flatten(2)
        outputs = self.out_proj(mixed if self.batch_first else mixed.transpose(0, 1))
        if not need_weights:
            return outputs, None
        return outputs, weights.mean(dim=1) if average_attn_weights else weights

    def _projections(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Projected query, key and value, each with the shape of its input."""
        of_query = self.in_proj(query)
        if query is key is value:
            return list(of_query.chunk(3, dim=-1))  # faster than slices in the backward pass
        of_key = of_query if key is query else self.in_proj(key)
        of_value = of_key if value is key else self.in_proj(value)
        parts, width = (of_query, of_key, of_value), query.shape[-1]
        return [part[..., i * width : (i + 1) * width] for i, part in enumerate(parts)]


def _additive(mask: Tensor, scores: Tensor) -> Tensor:
    """A Boolean mask as one to add to the scores: -inf where attention is forbidden."""
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, -math.inf)


def prepared(module: nn.Module) -> nn.Module:
    """A copy without in-place layers, of layers that can be differentiated record by record.

    Attention calls layers that have rules, recurrence is a loop, and dropout is keyed.
    """
    module = copy.deepcopy(module).train()
    done: tuple[str, ...] = ()
    # A layer that has two names is replaced by one and the same layer under both.
    instead_of: dict[int, nn.Module | None] = {}
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if getattr(layer, "inplace", None) is True:
            layer.inplace = False
        if name.startswith(done):
            continue
        if id(layer) not in instead_of:
            instead_of[id(layer)] = replaced(layer)
        instead = instead_of[id(layer)]
        if instead is not None and not name:
            return instead
        if instead is not None:
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, instead)
            done += (f"{name}.",)
    return module


def replaced(layer: nn.Module) -> nn.Module | None:
    """What stands in for a layer; None where it stays."""
    if LayeredAttention.applies_to(layer):
        return LayeredAttention(layer)
    return ScannedRecurrence.of(layer) or KeyedDropout.of(layer)
