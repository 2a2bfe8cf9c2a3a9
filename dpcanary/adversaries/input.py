"""Canaries that are records: random, blank, with a flipped label, most opposed, and crafted."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.adversaries.adversary_settings import Purpose
from dpcanary.adversaries.crafting import Crafting, RecordGradients, Target, input_canary
from dpcanary.core.randomness import generator
from dpcanary.data.canaries import InputCanary
from dpcanary.data.records import Labels, Records
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import Stepping
from dpcanary.training.training_settings import Optimizer


def random_records(crafting: Crafting) -> list[InputCanary]:
    """Each target itself, with its own label."""
    return [InputCanary(target.features, target.label, target.index) for target in crafting.targets]


def blank_records(crafting: Crafting) -> list[InputCanary]:
    """For each target a record whose features are all 0, with the last label.

    Its loss is that of the model's constants alone, which few other gradients move.
    """
    label = crafting.possible_labels[-1].item()
    return [
        InputCanary(np.zeros_like(target.features), label, target.index)
        for target in crafting.targets
    ]


def flipped_labels(crafting: Crafting) -> list[InputCanary]:
    """Each target with another label, by `with_other_labels`; numbers are one of the extremes."""
    seed, possible = crafting.stage.seed, crafting.possible_labels
    labels: list[int] | list[float]
    if crafting.data.private.has_classes:
        labels = with_other_labels(crafting.targets, seed=seed, num_classes=len(possible))
    else:
        stream = generator(seed=seed, purpose=Purpose.OTHER_LABELS)
        labels = [stream.choice(_others(possible, target)).item() for target in crafting.targets]
    return [
        InputCanary(target.features, label, target.index)
        for target, label in zip(crafting.targets, labels, strict=True)
    ]


def with_other_labels(targets: Sequence[Target], *, seed: int, num_classes: int) -> list[int]:
    """For each target a label that is drawn from the other classes, of which there must be one."""
    if num_classes < 2:
        raise InputError("the records have one class only: there is no other label for a canary")
    stream = generator(seed=seed, purpose=Purpose.OTHER_LABELS)
    return [
        (int(target.label) + int(stream.integers(1, num_classes))) % num_classes
        for target in targets
    ]


def random_labels(crafting: Crafting) -> list[InputCanary]:
    """Each target, whose label is a secret: every run draws one of all classes for it."""
    if crafting.data.num_classes < 2:
        raise InputError("the records have one class only: a label is no secret")
    return random_records(crafting)


def mislabeled(crafting: Crafting) -> list[InputCanary]:
    """Every target with the other label whose gradient opposes the target's most."""
    canaries = []
    for target in crafting.targets:
        labels = _others(crafting.possible_labels, target)
        relabeled = Records(np.repeat(target.features[None], len(labels), axis=0), labels)
        best = int(np.argmin(_cosines(crafting.gradients, relabeled, target)))
        canaries.append(input_canary(relabeled[best : best + 1], target))
    return canaries


def _others(possible: Labels, target: Target) -> Labels:
    """The possible labels that a target does not have, of which there must be one."""
    others: Labels = possible[possible != target.label]
    if not len(others):
        raise InputError("a canary with another label needs at least 2 classes, or other numbers")
    return others


def natural(crafting: Crafting) -> list[InputCanary]:
    """For every target, the auxiliary record whose gradient opposes the target's most.

    Each record serves at most one slot.
    """
    auxiliary, num_slots = crafting.data.auxiliary, crafting.stage.num_slots
    if num_slots > len(auxiliary):
        raise InputError(
            f"num_slots {num_slots} is more than the {len(auxiliary)} auxiliary records"
        )
    is_free = np.ones(len(auxiliary), dtype=np.bool_)
    canaries = []
    for target in crafting.targets:
        cosines = _cosines(crafting.gradients, auxiliary, target)
        best = int(np.argmin(np.where(is_free, cosines, np.inf)))
        is_free[best] = False
        canaries.append(input_canary(auxiliary[best : best + 1], target))
    return canaries


def _cosines(
    gradients: RecordGradients, candidates: Records, target: Target
) -> NDArray[np.float64]:
    """Cosines of the candidates' gradients with the target's, shape (n,)."""
    cosines = gradients.cosines(candidates, gradients.of_target(target))
    if not np.isfinite(cosines).all():
        raise InputError(
            f"candidate {int(np.argmin(np.isfinite(cosines)))} for a canary has a gradient that is"
            " not finite: lower the reference's learning_rate, or scale the features"
        )
    return cosines


def crafted_inputs(crafting: Crafting) -> list[InputCanary]:
    """A crafted input for every target, by `crafted_input`."""
    num_steps, step_size = crafting.stage.crafting_steps, crafting.stage.crafting_step_size
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
    of the two gradients at the reference model. Where labels are numbers, gradients have their
    scale, and the difference of long ones would lead back to the target: there it is in units of
    the target's norm. The optimiser is Adam, because the published plain descent diverges or
    stalls, depending on the scale of the features. `step_size` is Adam's, in units of a feature.
    `on_progress` gets the number of steps just done.

    Raises:
        InputError: if the features are not real numbers, the target has no gradient, or the descent
            diverges or ends at the target.
    """
    if not np.issubdtype(target.features.dtype, np.floating):
        raise InputError("crafted_input needs features that are real numbers, to descend on them")
    label, target_gradient = gradients.labels(target.label), gradients.of_target(target).detach()
    if not bool(target_gradient.any()):
        raise InputError(
            f"crafted_input: the gradient of private record {target.index}, its target, is 0 at the"
            " reference model, so that none opposes it: choose another canary"
        )
    crafted = torch.zeros_like(gradients.inputs(target.features)).requires_grad_()
    optimiser = Stepping(Optimizer.ADAM, crafted, fused=False)
    unit = 1.0 if isinstance(target.label, int) else target_gradient.norm()
    for _ in range(num_steps):
        gradient = gradients.of(crafted, label)
        cosine = torch.nn.functional.cosine_similarity(gradient, target_gradient, dim=0)
        difference = torch.nn.functional.mse_loss(gradient / unit, target_gradient / unit)
        loss = cosine + difference
        [descent] = torch.autograd.grad(loss, crafted)
        optimiser.step(descent, step_size)
        on_progress(1)
    if not bool(torch.isfinite(crafted).all()):
        raise InputError(f"crafted_input diverged; lower crafting_step_size ({step_size:g})")
    features = crafted.detach().float().cpu().numpy()
    if np.array_equal(features, target.features):
        raise InputError(
            "crafted_input ends at its target, so both worlds would be the same: choose another"
            " canary"
        )
    return InputCanary(features, target.label, target.index)
