"""From a forward and a backward pass to what each unit adds to a step."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dpcanary.training.losses import record_losses
from dpcanary.training.modules.any_layer import Place, Used
from dpcanary.training.modules.layer_rules import contribution
from dpcanary.training.modules.outer_products import Contribution
from dpcanary.training.modules.recording import Call, Recorder, Unit
from dpcanary.training.options import Loss


def used_by_one(
    recorder: Recorder, features: Tensor, labels: Tensor, loss: Loss
) -> list[list[Used]]:
    """The calls of each unit of the loaded model, with their gradients.

    Args:
        recorder: with the model's parameters loaded.
        features: shape (n, ...).
        labels: shape (n,).
        loss: of each record.
    """
    outputs, calls = recorder.record(features)
    gradients = _gradients(outputs, labels, loss, calls)
    used: list[list[Used]] = [[] for _ in recorder.units]
    for call in calls:
        dims = recorder.units[call.unit]
        inputs = [
            (x if dim is None else x.movedim(dim, 0)).unsqueeze(0)
            for x, dim in zip(call.tensors, dims.input_dims, strict=True)
        ]
        own = [gradients.pop(0).movedim(dim or 0, 0).unsqueeze(0) for dim in dims.output_dims]
        used[call.unit].append(Used(call, inputs, own))
    return used


def used_by_all(
    recorder: Recorder,
    parameters: Tensor,
    features: Tensor,
    labels: Tensor,
    loss: Loss,
    shapes: Sequence[tuple[int, ...]],
) -> list[list[Used]]:
    """The calls of each unit, of all runs together.

    Args:
        recorder: of the module.
        parameters: shape (runs, parameters).
        features: shape (n, ...) if shared by all runs, else (runs, n, ...).
        labels: shape (n,) or (runs, n).
        loss: of each record.
        shapes: of the outputs of every call, in order, for these n records and one run.
    """
    runs = len(parameters)
    zero = parameters.new_zeros(())
    shifts = [zero.expand(runs, *shape).requires_grad_() for shape in shapes]
    outputs, calls = recorder.record_runs(parameters, features, shifts, shared=labels.dim() == 1)
    gradients = _gradients(outputs, labels.expand(runs, -1), loss, calls)
    used: list[list[Used]] = [[] for _ in recorder.units]
    for call in calls:
        dims = recorder.units[call.unit]
        inputs = [
            x if dim is None else x.movedim(dim + 1, 1)
            for x, dim in zip(call.tensors, dims.input_dims, strict=True)
        ]
        own = [gradients.pop(0).movedim((dim or 0) + 1, 1) for dim in dims.output_dims]
        used[call.unit].append(Used(call, inputs, own))
    return used


def contributions(
    recorder: Recorder, parameters: Tensor, used: Sequence[Sequence[Used]]
) -> Iterator[Contribution | None]:
    """What each unit adds; None where it was not called.

    Args:
        recorder: of the module.
        parameters: shape (runs, parameters).
        used: the calls of each unit.
    """
    for unit, layer, calls in zip(recorder.units, recorder.layers, used, strict=True):
        own = parameters[:, unit.start : unit.stop]
        place = Place(layer, own, unit.input_dims, unit.output_dims)
        yield contribution(place, calls) if calls else None


def write_clipped_sums(
    units: Sequence[Unit],
    found: Sequence[Contribution | None],
    weights: Tensor,
    max_grad_norm: float,
    out: Tensor,
) -> None:
    """Clips each record's gradient and overwrites `out` with the weighted sums.

    Args:
        units: of the module.
        found: what each unit adds.
        weights: of the records, shape (runs, n).
        max_grad_norm: C; inf does not clip.
        out: shape (runs, parameters).
    """
    squared = torch.stack([f.squared_norms for f in found if f is not None]).sum(dim=0)
    # A zero gradient gives C / 0 = inf, clamped to 1.
    scales = squared.sqrt_().reciprocal_().mul_(max_grad_norm).clamp_(max=1.0).mul_(weights)
    for unit, own in zip(units, found, strict=True):
        part = out[:, unit.start : unit.stop]
        if own is None:
            part.zero_()
        else:
            own.write_sums(scales, part)


def _gradients(outputs: Tensor, labels: Tensor, loss: Loss, calls: Sequence[Call]) -> list[Tensor]:
    """Gradients of the summed losses in the outputs of all calls, in order."""
    taps = [output for call in calls for output in call.outputs]
    with torch.enable_grad():
        total = record_losses(outputs, labels, loss).sum()
    return list(torch.autograd.grad(total, taps, allow_unused=True, materialize_grads=True))
