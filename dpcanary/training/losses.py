"""Losses of single records, and their derivatives in the outputs."""

import torch
from torch import Tensor

from dpcanary.training.training_settings import Loss


def record_losses(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """The loss of each record, shape (...), for logits (..., K) and class indices (...).

    With one output, labels are 0 or 1. Binary cross-entropy is averaged over the outputs.
    """
    if loss is Loss.CROSS_ENTROPY:
        chosen = outputs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return torch.logsumexp(outputs, dim=-1) - chosen
    targets = target_outputs(labels, outputs.shape[-1])
    return torch.nn.functional.binary_cross_entropy_with_logits(
        outputs, targets.expand_as(outputs), reduction="none"
    ).mean(dim=-1)


def target_outputs(labels: Tensor, num_outputs: int) -> Tensor:
    """One-hot labels, shape (..., K); with one output, the label itself."""
    if num_outputs == 1:
        return labels.unsqueeze(-1).float()
    # `one_hot` has no rule for vmap, by which gradients of single records are computed.
    return (labels.unsqueeze(-1) == torch.arange(num_outputs, device=labels.device)).float()


def residuals(outputs: Tensor, targets: Tensor, loss: Loss, *, dim: int) -> Tensor:
    """Derivative of each record's loss in its logits, which lie along `dim` of `outputs`.

    `targets` of `target_outputs` are broadcast against the logits.
    """
    if loss is Loss.CROSS_ENTROPY:
        return torch.softmax(outputs, dim=dim).sub_(targets)
    return torch.sigmoid(outputs).sub_(targets).div_(outputs.shape[dim])
