"""S3: the crafted input canary (Pradhan et al., Algorithm 3)."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.canaries import InputCanary
from dpcanary.canaries.record_gradients import RecordGradients, as_inputs
from dpcanary.errors import InputError


def crafted_input(
    *,
    gradients: RecordGradients,
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
        gradients: of the reference model.
        target_features: shape (...).
        target_label: label of target and canary.
        num_steps: descent steps.
        step_size: of Adam, in units of a feature.
        on_progress: told the number of steps just done.

    Raises:
        InputError: if the features are not real numbers, or the descent diverges.
    """
    if not np.issubdtype(target_features.dtype, np.floating):
        raise InputError("crafted_input needs features that are real numbers, to descend on them")
    label = torch.tensor(target_label)
    target = gradients.of(as_inputs(target_features), label).detach()
    crafted = torch.zeros(target_features.shape, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([crafted], lr=step_size)
    for _ in range(num_steps):
        optimiser.zero_grad()
        gradient = gradients.of(crafted, label)
        cosine = torch.nn.functional.cosine_similarity(gradient, target, dim=0)
        loss = cosine + torch.nn.functional.mse_loss(gradient, target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        on_progress(1)
    if not bool(torch.isfinite(crafted).all()):
        raise InputError(f"crafted_input diverged; lower crafting_step_size ({step_size:g})")
    return InputCanary(features=crafted.detach().float().numpy(), label=target_label)
