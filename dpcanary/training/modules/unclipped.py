"""Weighted gradient sums without clipping, which need no gradients of single records."""

import torch
from torch import Tensor
from torch.func import vmap

from dpcanary.training.losses import record_losses
from dpcanary.training.modules.recording import Recorder
from dpcanary.training.options import Loss


@torch.enable_grad()
def unclipped_sums(
    recorder: Recorder,
    parameters: Tensor,
    features: Tensor,
    labels: Tensor,
    weights: Tensor,
    loss: Loss,
    out: Tensor,
) -> None:
    """Overwrites `out` with weighted sums of the records' gradients.

    Args:
        recorder: of the module.
        parameters: shape (runs, parameters).
        features: shape (n, ...) if shared by all runs, else (runs, n, ...).
        labels: shape (n,) or (runs, n).
        weights: shape (runs, n).
        loss: of each record.
        out: shape (runs, parameters).
    """
    leaf = parameters.detach().requires_grad_()
    if len(leaf) == 1:
        records = features if labels.dim() == 1 else features[0]
        outputs = recorder.plain_with(leaf[0], records).unsqueeze(0)
    else:
        in_dims = (0, None if labels.dim() == 1 else 0)
        outputs = vmap(recorder.plain_with, in_dims)(leaf, features)
    losses = record_losses(outputs, labels.expand(len(leaf), -1), loss)
    (gradient,) = torch.autograd.grad((losses * weights).sum(), leaf)
    out.copy_(gradient)
