"""S3: crafted input canaries (Pradhan et al., Algorithm 3)."""

from collections.abc import Callable

import numpy as np
import torch

from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.record_gradients import RecordGradients
from dpcanary.adversaries.target import Target
from dpcanary.canaries import InputCanary
from dpcanary.errors import InputError


def crafted_inputs(crafting: Crafting) -> list[InputCanary]:
    """A crafted input for every target, by `crafted_input`."""
    num_steps, step_size = crafting.stage.crafting_steps, crafting.stage.crafting_step_size
    if num_steps is None or step_size is None:
        raise InputError("crafted_input needs crafting_steps and crafting_step_size")
    with crafting.progress(num_steps * len(crafting.targets), "step") as bar:
        return [
            crafted_input(
                gradients=crafting.gradients,
                target=target,
                num_steps=num_steps,
                step_size=step_size,
                on_progress=bar.update,
            )
            for target in crafting.targets
        ]


def crafted_input(
    *,
    gradients: RecordGradients,
    target: Target,
    num_steps: int,
    step_size: float,
    on_progress: Callable[[int], object] = lambda steps: None,
) -> InputCanary:
    """Features whose gradient, with the target's own label, opposes the target's gradient.

    The search starts at zeros. It minimises the cosine similarity plus the mean squared difference
    of the two gradients at the reference model. The optimiser is Adam, because the published plain
    descent diverges or stalls, depending on the scale of the features. `step_size` is Adam's, in
    units of a feature. `on_progress` gets the number of steps just done.

    Raises:
        InputError: if the features are not real numbers, or the descent diverges.
    """
    if not np.issubdtype(target.features.dtype, np.floating):
        raise InputError("crafted_input needs features that are real numbers, to descend on them")
    label = gradients.labels(target.label)
    features = gradients.inputs(target.features)
    wanted = gradients.of(features, label).detach()
    crafted = torch.zeros_like(features).requires_grad_()
    optimiser = torch.optim.Adam([crafted], lr=step_size)
    for _ in range(num_steps):
        optimiser.zero_grad()
        gradient = gradients.of(crafted, label)
        cosine = torch.nn.functional.cosine_similarity(gradient, wanted, dim=0)
        loss = cosine + torch.nn.functional.mse_loss(gradient, wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        on_progress(1)
    if not bool(torch.isfinite(crafted).all()):
        raise InputError(f"crafted_input diverged; lower crafting_step_size ({step_size:g})")
    return InputCanary(crafted.detach().float().cpu().numpy(), target.label, target.index)
