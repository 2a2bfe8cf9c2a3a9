"""Layers, losses and states in which records depend on each other, and layers that draw at random.

Every call starts from the same state of PyTorch's generators and of the module, so what differs
between two calls comes from the records.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpcanary.checking.model.record_gradients import (
    Batch,
    Loss,
    losses_alone,
    outputs_of,
    trained,
)
from dpcanary.core.global_generators import seed_torch
from dpcanary.training.modules.kept_state import kept_state, unchanged_state

# Relative. Sums of a batch are added up in another order than those of one record.
_SAME = 1e-3
# Batches of copies of one record whose traces in the model are compared.
_ALIKE = 3


@dataclass
class Call:
    """Tensors that went into one layer and came out of it, in one pass, by order of completion.

    Attributes:
        name: of the layer.
        inputs: all tensors among its arguments.
        outputs: all tensors that it gave.
        input_gradients: of the records' losses in these, by the number of the input.
        output_gradients: the same for outputs.
    """

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    input_gradients: dict[int, Tensor] = field(default_factory=dict)
    output_gradients: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Axes:
    """Which axis of each tensor of a call is the records'; -1 if none is.

    It is the one whose size follows the number of records, whatever other sizes coincide with it.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def random_layer(model: nn.Module, batch: Batch) -> str | None:
    """The first layer that gives other outputs for the same inputs in a second pass; None if none.

    Such are functional dropout and layers that are left out at random.
    """
    calls, again = (_calls(model, batch, seed=seed) for seed in (0, 1))
    for first, second in zip(calls, again, strict=False):
        if not _alike(first.outputs, second.outputs):
            same = _alike(first.inputs, second.inputs)
            return _place(first.name) if same else f"what comes before {_place(first.name)}"
    return None


def mixing_layer(
    model: nn.Module, batch: Batch, others: Batch, loss: Loss, *, is_random: bool
) -> str | None:
    """The first layer in which a record's values change with the other records; None if none.

    Each record is compared at its own place in the batch, among different others and among copies
    of itself: a layer of experts may leave out the last records, or those that many are like. It is
    compared among fewer others as well, unless a smaller batch meets other random numbers. The
    gradients of the records' losses in the layers' outputs are compared among different others.

    Args:
        model: in training mode.
        batch: at least two records.
        others: as many.
        loss: of outputs and labels.
        is_random: whether the model draws random numbers.
    """
    count = len(batch)
    reference = _calls(model, batch)
    axes = _axes(reference, _calls(model, others.rows(slice(1, None))), count)
    for place in range(count):
        for changed in (with_record(others, batch, place), batch.rows([place] * count)):
            layer = _first_change(reference, _calls(model, changed), axes, place)
            if layer:
                return layer
    if not is_random:
        fewer = batch.rows(slice(0, max(2, count - 1)))  # some layers take no single record
        layer = _first_change(reference, _calls(model, fewer), axes, 0)
        if layer:
            return layer
    reference = _calls(model, batch, loss=loss)
    for place in (0, count - 1):
        changed = with_record(others, batch, place)
        layer = _first_change_backwards(reference, _calls(model, changed, loss=loss), axes, place)
        if layer:
            return layer
    return None


def kept_of_records(model: nn.Module, batch: Batch, others: Batch) -> list[str]:
    """Buffers, parameters and other state that hold something of the records after forward passes.

    Other state shows in the outputs: those for one batch then depend on the batch before it.

    Args:
        model: in training mode.
        batch: what is called in the first pass.
        others: as many other records.
    """
    fewer = others.rows(slice(1, None))  # some buffers count records
    # Batches of one record alone differ most, as in what they choose among experts.
    alike = [batch.rows([place] * len(batch)) for place in range(min(len(batch), _ALIKE))]
    kept = kept_state(model, *(partial(outputs_of, model, own) for own in (batch, fewer, *alike)))
    names = [*kept.of_records]
    after = [_after(model, earlier, batch) for earlier in (batch, others, fewer)]
    if not names and not all(_alike(after[0], other) for other in after[1:]):
        names.append("a tensor or number that is no buffer")
    return names


def _after(model: nn.Module, earlier: Batch, batch: Batch) -> list[Tensor]:
    """Outputs for a batch in training and in evaluation, after a pass of an earlier one."""
    copied = deepcopy(model)
    tensors = []
    with torch.no_grad(), unchanged_state(copied):
        seed_torch(0)
        outputs_of(copied, earlier)
        for mode in (True, False):
            seed_torch(0)
            tensors += _tensors(outputs_of(copied.train(mode), batch))
    return tensors


def with_record(others: Batch, batch: Batch, place: int) -> Batch:
    """The other records, but for that at one place."""
    return _joined(
        others.rows(slice(0, place)),
        batch.rows(slice(place, place + 1)),
        others.rows(slice(place + 1, None)),
    )


def _joined(*parts: Batch) -> Batch:
    first = parts[0]
    if isinstance(first.inputs, dict):
        inputs: Any = {
            name: torch.cat([part.inputs[name] for part in parts])  # type: ignore[call-overload]
            for name in first.inputs
        }
    else:
        inputs = tuple(
            torch.cat([part.inputs[index] for part in parts])  # type: ignore[index]
            for index in range(len(first.inputs))
        )
    return Batch(inputs, torch.cat([part.labels for part in parts]))


def _calls(
    model: nn.Module, batch: Batch, *, seed: int = 0, loss: Loss | None = None
) -> list[Call]:
    """The layers' calls in one pass; with gradients of the sum of the records' losses, if given."""
    seen: list[Call] = []
    handles = []

    def hook(name: str) -> Any:
        def after(module: nn.Module, inputs: Any, keywords: Any, outputs: Any) -> None:
            read, written = _tensors([inputs, keywords]), _tensors(outputs)
            call = Call(
                name, [_kept(tensor) for tensor in read], [_kept(tensor) for tensor in written]
            )
            if loss:
                _keep_gradients(read, call.input_gradients)
                _keep_gradients(written, call.output_gradients)
            seen.append(call)

        return after

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(hook(name), with_kwargs=True))
    try:
        with unchanged_state(model), torch.set_grad_enabled(loss is not None):
            seed_torch(seed)
            outputs = outputs_of(model, batch)
            parameters = [*trained(model).values()]
            if loss and parameters:
                # Gradients in layers' values are kept by hooks; parameters keep none.
                torch.autograd.grad(
                    losses_alone(outputs, batch, loss).sum(), parameters, allow_unused=True
                )
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _kept(values: Tensor) -> Tensor:
    return values.detach().clone()


def _keep_gradients(tensors: Sequence[Tensor], kept: dict[int, Tensor]) -> None:
    def keeper(index: int) -> Callable[[Tensor], None]:
        def keep(gradient: Tensor) -> None:
            kept[index] = _kept(gradient)

        return keep

    for index, tensor in enumerate(tensors):
        if tensor.requires_grad and not isinstance(tensor, nn.Parameter):
            tensor.register_hook(keeper(index))  # type: ignore[no-untyped-call]


def _tensors(values: Any) -> list[Tensor]:
    """All tensors among arguments or results."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = [*values.values()]
    if isinstance(values, tuple | list):
        return [tensor for value in values for tensor in _tensors(value)]
    return []


def _axes(reference: list[Call], fewer: list[Call], count: int) -> list[Axes]:
    """The records' axes, from a pass of so many records and one of a record less."""

    def of(tensors: list[Tensor], smaller: list[Tensor]) -> tuple[int, ...]:
        return tuple(_axis(a, b, count) for a, b in zip(tensors, smaller, strict=False))

    return [
        Axes(of(call.inputs, other.inputs), of(call.outputs, other.outputs))
        for call, other in zip(reference, fewer, strict=False)
    ]


def _axis(values: Tensor, fewer: Tensor, count: int) -> int:
    if values.dim() == fewer.dim():
        for axis in range(values.dim()):
            if values.shape[axis] == count and fewer.shape[axis] == count - 1:
                return axis
    return -1


def _rows(tensors: Sequence[Tensor], axes: Sequence[int], place: int) -> list[Tensor]:
    """The part of one record of all tensors that have records."""
    return [
        own.select(axis, place)
        for own, axis in zip(tensors, axes, strict=False)
        if axis >= 0 and place < own.shape[axis]
    ]


def _first_change(
    reference: list[Call], changed: list[Call], axes: list[Axes], place: int
) -> str | None:
    for first, second, axis in zip(reference, changed, axes, strict=False):
        if not _alike(*(_rows(call.outputs, axis.outputs, place) for call in (first, second))):
            if _alike(*(_rows(call.inputs, axis.inputs, place) for call in (first, second))):
                return _place(first.name)
            parent = first.name.rpartition(".")[0]
            return f"what comes before {first.name}" + (f" in {parent}" if parent else "")
    return None


def _first_change_backwards(
    reference: list[Call], changed: list[Call], axes: list[Axes], place: int
) -> str | None:
    for first, second, axis in reversed([*zip(reference, changed, axes, strict=False)]):
        if not _gradients_alike(
            first.output_gradients, second.output_gradients, axis.outputs, place
        ):
            return f"the backward pass of what comes after {_place(first.name)}"
        if not _gradients_alike(first.input_gradients, second.input_gradients, axis.inputs, place):
            return f"the backward pass of {_place(first.name)}"
    return None


def _gradients_alike(
    first: dict[int, Tensor], second: dict[int, Tensor], axes: tuple[int, ...], place: int
) -> bool:
    return all(
        _alike(*(_rows([gradients[index]], [axes[index]], place) for gradients in (first, second)))
        for index in first.keys() & second.keys()
        if index < len(axes)
    )


def _place(name: str) -> str:
    return name or "the model"


def _alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Whether tensors of one record are the same; other shapes, as of padding, are not compared."""
    return all(
        a.shape != b.shape or _distance(a, b) < _SAME for a, b in zip(first, second, strict=False)
    )


def _distance(first: Tensor, second: Tensor) -> float:
    if not first.is_floating_point():
        return float((first != second).any())
    first, second = first.double(), second.double()
    # NaN in both places is the same.
    first, second = first.nan_to_num(), second.nan_to_num()
    return float((first - second).norm() / max(float(first.norm()), float(second.norm()), 1e-12))


def weights_in_loss(model: nn.Module, batch: Batch, loss: Loss) -> Tensor | None:
    """The records' weights in the loss of a batch, over those that they have alone.

    Returns:
        Of those whose loss alone has a gradient, shape (records,): 1 for a sum, 1 / records for a
        mean. None if a record's loss depends on the outputs or labels of others in another way, or
        outputs are not a tensor.
    """
    with torch.no_grad(), unchanged_state(model):
        outputs = outputs_of(model, batch)
    if not isinstance(outputs, Tensor) or len(outputs) != len(batch):
        return None
    outputs = outputs.detach().requires_grad_()
    [together] = torch.autograd.grad(loss(outputs, batch.labels), [outputs])
    weights = []
    for index in range(len(batch)):
        own = outputs[index : index + 1].detach().requires_grad_()
        [alone] = torch.autograd.grad(loss(own, batch.labels[index : index + 1]), [own])
        first, second = together[index].double().flatten(), alone.double().flatten()
        square = float(second @ second)
        weight = float(first @ second) / square if square else 0.0
        if not float((first - weight * second).norm()) <= 1e-2 * float(first.norm()) + 1e-12:
            return None
        if square:
            weights.append(weight)
    return torch.tensor(weights)
