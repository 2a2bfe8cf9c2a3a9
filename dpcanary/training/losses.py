"""Losses of single records, and their derivatives in the outputs."""

import torch
from torch import Tensor

from dpcanary.errors import InputError
from dpcanary.training.training_settings import Loss


def check_num_outputs(num_outputs: int, loss: Loss) -> None:
    """Refuses a model of several outputs whose loss is for one."""
    if num_outputs != loss.num_outputs(num_outputs):
        raise InputError(f"loss {loss} needs a model of one output; this one has {num_outputs}")


def record_losses(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """The loss of each record, shape (...), for outputs (..., K) and labels (...).

    Labels are class indices, 0 or 1 with one output; or numbers, for squared error. Binary
    cross-entropy is averaged over the outputs.
    """
    if loss is Loss.SQUARED_ERROR:
        return (outputs.squeeze(-1) - labels).square()
    if loss is Loss.CROSS_ENTROPY:
        chosen = outputs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return torch.logsumexp(outputs, dim=-1) - chosen
    targets = target_outputs(labels, outputs.shape[-1])
    return torch.nn.functional.binary_cross_entropy_with_logits(
        outputs, targets.expand_as(outputs), reduction="none"
    ).mean(dim=-1)


def mean_loss(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """The mean of the losses of some records; see `record_losses`."""
    return record_losses(outputs, labels, loss).mean()


def target_outputs(labels: Tensor, num_outputs: int) -> Tensor:
    """One-hot labels, shape (..., K); with one output, the label itself."""
    if num_outputs == 1:
        return labels.unsqueeze(-1).float()
    # `one_hot` has no rule for vmap, by which gradients of single records are computed.
    return (labels.unsqueeze(-1) == torch.arange(num_outputs, device=labels.device)).float()


def residuals(outputs: Tensor, targets: Tensor, loss: Loss, *, dim: int) -> Tensor:
    """Derivative of each record's loss in its outputs, which lie along `dim` of `outputs`.

    `targets` of `target_outputs` are broadcast against the outputs.
    """
    if loss is Loss.SQUARED_ERROR:
        return (outputs - targets).mul_(2.0)
    if loss is Loss.CROSS_ENTROPY:
        return torch.softmax(outputs, dim=dim).sub_(targets)
    return torch.sigmoid(outputs).sub_(targets).div_(outputs.shape[dim])
