"""S3: the crafted input canary (Pradhan et al., Algorithm 3)."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.canaries import InputCanary
from dpcanary.errors import InputError
from dpcanary.features import with_bias


def crafted_input(
    *,
    weights: NDArray[np.float32],
    target_features: NDArray[np.float32],
    target_label: int,
    num_steps: int,
    step_size: float,
    on_progress: Callable[[int], object] = lambda steps: None,
) -> InputCanary:
    """Features whose gradient, with the target's own label, opposes the target's.

    From zeros, minimises cosine similarity plus mean squared difference of the two gradients
    through the reference model. The optimiser is Adam: the published plain descent diverges or
    stalls depending on the features' scale.

    Args:
        weights: the reference model, shape (classes, features + 1).
        target_features: shape (features,).
        target_label: label of target and canary.
        num_steps: descent steps.
        step_size: of Adam, in units of a feature.
        on_progress: told the number of steps just done.

    Raises:
        InputError: if the descent diverges.
    """
    model = torch.from_numpy(weights)
    label = torch.nn.functional.one_hot(torch.tensor(target_label), len(weights)).float()
    target = _gradient(model, torch.from_numpy(with_bias(target_features[None, :])[0]), label)
    crafted = torch.zeros(len(target_features), requires_grad=True)
    optimiser = torch.optim.Adam([crafted], lr=step_size)
    for _ in range(num_steps):
        optimiser.zero_grad()
        gradient = _gradient(model, torch.cat([crafted, torch.ones(1)]), label)
        cosine = torch.nn.functional.cosine_similarity(gradient, target, dim=0)
        loss = cosine + torch.nn.functional.mse_loss(gradient, target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        on_progress(1)
    if not bool(torch.isfinite(crafted).all()):
        raise InputError(f"crafted_input diverged; lower crafting_step_size ({step_size:g})")
    return InputCanary(features=crafted.detach().numpy(), label=target_label)


def _gradient(weights: Tensor, features: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy gradient of one record, flattened; differentiable in the features."""
    residual = torch.softmax(weights @ features, dim=0) - label
    return torch.outer(residual, features).flatten()
