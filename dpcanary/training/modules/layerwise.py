"""From a forward and a backward pass to clipped gradient sums."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dpcanary.training.losses import record_losses
from dpcanary.training.modules.layer_rules import Used, contribution
from dpcanary.training.modules.recording import Call, Recorder
from dpcanary.training.settings import Loss


@torch.enable_grad()
def used_by_one(
    recorder: Recorder, features: Tensor, labels: Tensor, loss: Loss, *, num_views: int = 1
) -> list[list[Used]]:
    """The calls of each unit of the loaded model, with their gradients.

    Args:
        recorder: with the model's parameters loaded.
        features: shape (n, ...).
        labels: shape (n,).
        loss: of each record.
        num_views: of a record; its loss is the mean over them. All records come in their first
            view, then all in their second one, and so on. Each view becomes a call of its own.
    """
    outputs, calls = recorder.record(features)
    losses = record_losses(outputs, labels, loss) / num_views
    return _used(recorder, calls, losses, one=True, num_views=num_views)


@torch.enable_grad()
def used_by_all(
    recorder: Recorder,
    parameters: Tensor,
    features: Tensor,
    labels: Tensor,
    loss: Loss,
    shapes: Sequence[tuple[int, ...]],
    *,
    num_views: int = 1,
) -> list[list[Used]]:
    """The calls of each unit, of all runs together.

    Args:
        recorder: of the module.
        parameters: shape (runs, parameters).
        features: shape (n, ...) if shared by all runs, else (runs, n, ...).
        labels: shape (n,) or (runs, n).
        loss: of each record.
        shapes: of the outputs of every call, in order, for these n records and one run.
        num_views: see `used_by_one`.
    """
    runs = len(parameters)
    zero = parameters.new_zeros(())
    shifts = [zero.expand(runs, *shape).requires_grad_() for shape in shapes]
    outputs, calls = recorder.record_runs(parameters, features, shifts, shared=labels.dim() == 1)
    losses = record_losses(outputs, labels.expand(runs, -1), loss) / num_views
    return _used(recorder, calls, losses, one=False, num_views=num_views)


def _used(
    recorder: Recorder, calls: Sequence[Call], losses: Tensor, *, one: bool, num_views: int
) -> list[list[Used]]:
    """Adds the gradients of the summed losses to the calls of `one` model or of all runs."""
    taps = [output for call in calls for output in call.outputs]
    total = losses.sum()
    gradients = iter(torch.autograd.grad(total, taps, allow_unused=True, materialize_grads=True))

    def by_view(x: Tensor, dim: int | None) -> Sequence[Tensor]:
        """Of each view, with the runs first and the records second."""
        stacked = x.unsqueeze(0) if one else x
        if dim is None:
            return [stacked] * num_views
        moved = stacked.movedim(dim + 1, 1)
        return moved.chunk(num_views, dim=1)

    used: list[list[Used]] = [[] for _ in recorder.units]
    for call in calls:
        unit = recorder.units[call.unit]
        inputs = [by_view(*pair) for pair in zip(call.tensors, unit.input_dims, strict=True)]
        own = [by_view(next(gradients), dim) for dim in unit.output_dims]
        for view in range(num_views):
            of_view = [x[view] for x in inputs], [x[view] for x in own]
            used[call.unit].append(Used(call, *of_view))
    return used


def write_clipped_sums(
    recorder: Recorder,
    parameters: Tensor,
    used: Sequence[Sequence[Used]],
    weights: Tensor,
    max_grad_norm: float,
    out: Tensor,
) -> None:
    """Clips each record's gradient and overwrites `out` with the weighted sums.

    Args:
        recorder: of the module.
        parameters: shape (runs, parameters).
        used: the calls of each unit.
        weights: of the records, shape (runs, n).
        max_grad_norm: C; inf does not clip.
        out: shape (runs, parameters).
    """
    found = [
        contribution(unit, layer, parameters[:, unit.start : unit.stop], calls) if calls else None
        for unit, layer, calls in zip(recorder.units, recorder.layers, used, strict=True)
    ]
    squared = torch.stack([f.squared_norms for f in found if f is not None]).sum(dim=0)
    # A zero gradient gives C / 0 = inf, clamped to 1.
    scales = squared.sqrt_().reciprocal_().mul_(max_grad_norm).clamp_(max=1.0).mul_(weights)
    for unit, own in zip(recorder.units, found, strict=True):
        part = out[:, unit.start : unit.stop]
        if own is None:
            part.zero_()
        else:
            own.write_sums(scales, part)


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
