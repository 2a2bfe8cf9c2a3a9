"""Weighted gradient sums without clipping, which need no gradients of single records."""

import torch
from torch import Tensor

from dpcanary.training.losses import record_losses
from dpcanary.training.modules.recording import Recorder
from dpcanary.training.options import Loss


@torch.enable_grad()
def unclipped_sum(
    recorder: Recorder,
    row: Tensor,
    features: Tensor,
    labels: Tensor,
    weights: Tensor,
    loss: Loss,
) -> Tensor:
    """The weighted sum of the records' gradients at one model, shape (parameters,).

    Runs take turns even where they could be vectorised: trainings without clipping are few, and
    PyTorch's own derivative is right for every module.

    Args:
        recorder: of the module.
        row: of the buffer, shape (parameters,).
        features: shape (n, ...).
        labels: shape (n,).
        weights: shape (n,).
        loss: of each record.
    """
    leaf = row.detach().requires_grad_()
    losses = record_losses(recorder.plain_with(leaf, features), labels, loss)
    (gradient,) = torch.autograd.grad((losses * weights).sum(), leaf)
    return gradient
