"""The objective of canaries: low loss where they are trained on, high loss where they are not."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.metagradients.reverse import Objective
from dpcanary.metagradients.task import Task


def loss_gap_objective(task: Task, inserted: NDArray[np.int64]) -> Objective:
    """Sum of the losses of canaries that are in, minus those that are out, in nats.

    It is equation 3 of Boglioni et al. (2025), which is minimised: then models have a low loss on
    what they were trained on, and a high one on what they were not.

    Args:
        task: holds the canaries' labels.
        inserted: indices of the canaries that are trained on.
    """
    signs = torch.full((len(task.canary_labels),), -1.0).to(task.features)
    signs[task.indices(inserted)] = 1.0

    def objective(parameters: Tensor, pixels: Tensor) -> Tensor:
        return (signs * task.canary_losses(parameters, pixels)).sum()

    return objective


def loss_gap(task: Task, parameters: Tensor, pixels: Tensor, inserted: NDArray[np.int64]) -> float:
    """Mean loss of the canaries that are out minus that of those that are in, in nats.

    With as many in as out, it is the objective times -2 / m.

    Args:
        task: holds the canaries' labels.
        parameters: of a trained model, shape (P,).
        pixels: of all canaries, shape (m, ...).
        inserted: indices of the canaries that were trained on.
    """
    with torch.no_grad():
        losses = task.canary_losses(parameters, pixels)
    is_in = torch.zeros_like(losses, dtype=torch.bool)
    is_in[task.indices(inserted)] = True
    return float(losses[~is_in].mean() - losses[is_in].mean())
