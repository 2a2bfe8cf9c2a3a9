"""Layers and losses in which records depend on each other."""

from typing import Any

import torch
from torch import Tensor, nn

from dpcanary.model_check.gradients import Batch, Loss, outputs_of

# Relative. Sums of a batch are added up in another order than those of one record.
_SAME = 1e-3


def mixing_layer(model: nn.Module, batch: Batch, others: Batch) -> str | None:
    """The first layer whose output for one record changes with the other records; None if none.

    Args:
        model: in training mode.
        batch: at least two records.
        others: as many; its first record is replaced by that of the batch.
    """
    first = batch.rows([0])
    changed = _joined(first, others.rows(slice(1, None)))
    # A batch norm that counts batches must not remember these.
    state = {name: own.clone() for name, own in model.state_dict().items()}
    seen = [_of_first_record(model, one) for one in (batch, changed)]
    model.load_state_dict(state)
    for (name, inputs, outputs), (_, other_inputs, other_outputs) in zip(*seen, strict=False):
        if not _alike(outputs, other_outputs):
            if _alike(inputs, other_inputs):
                return name or "the model"
            parent = name.rpartition(".")[0]
            return f"what comes before {name}" + (f" in {parent}" if parent else "")
    return None


def _joined(first: Batch, rest: Batch) -> Batch:
    if isinstance(first.inputs, dict):
        assert isinstance(rest.inputs, dict)
        inputs: Any = {
            name: torch.cat([own, rest.inputs[name]]) for name, own in first.inputs.items()
        }
    else:
        inputs = tuple(
            torch.cat([one, two]) for one, two in zip(first.inputs, rest.inputs, strict=True)
        )
    return Batch(inputs, torch.cat([first.labels, rest.labels]))


def _of_first_record(model: nn.Module, batch: Batch) -> list[tuple[str, Any, Any]]:
    """What goes into and comes out of each layer for the first record, in order of completion."""
    seen, count, handles = [], len(batch), []

    def hook(name: str) -> Any:
        def after(module: nn.Module, inputs: Any, outputs: Any) -> None:
            seen.append((name, _first(inputs, count), _first(outputs, count)))

        return after

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(hook(name)))
    try:
        with torch.no_grad():
            outputs_of(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _first(values: Any, count: int) -> list[Tensor]:
    """The first record's part of every tensor, whichever of its first two axes is the records'."""
    if isinstance(values, Tensor):
        for axis in range(min(2, values.dim())):
            if values.shape[axis] == count:
                return [values.select(axis, 0).detach().clone()]
        return []
    if isinstance(values, dict):
        values = [*values.values()]
    if isinstance(values, tuple | list):
        return [one for value in values for one in _first(value, count)]
    return []


def _alike(one: list[Tensor], two: list[Tensor]) -> bool:
    """Whether tensors of one record are the same; other shapes, as of padding, are not compared."""
    return all(
        a.shape != b.shape or _distance(a, b) < _SAME for a, b in zip(one, two, strict=False)
    )


def _distance(one: Tensor, two: Tensor) -> float:
    if not one.is_floating_point():
        return float((one != two).any())
    one, two = one.double(), two.double()
    return float((one - two).norm() / max(float(one.norm()), 1e-12))


def weights_in_loss(model: nn.Module, batch: Batch, loss: Loss) -> Tensor | None:
    """The records' weights in the loss of a batch, over those that they have alone.

    Returns:
        Shape (records,): 1 for a sum, 1 / records for a mean. None if a record's loss depends on
        the outputs or labels of others in another way, or outputs are not a tensor.
    """
    with torch.no_grad():
        outputs = outputs_of(model, batch)
    if not isinstance(outputs, Tensor) or len(outputs) != len(batch):
        return None
    outputs = outputs.detach().requires_grad_()
    [together] = torch.autograd.grad(loss(outputs, batch.labels), [outputs])
    weights = []
    for index in range(len(batch)):
        own = outputs[index : index + 1].detach().requires_grad_()
        [alone] = torch.autograd.grad(loss(own, batch.labels[index : index + 1]), [own])
        one, two = together[index].double().flatten(), alone.double().flatten()
        square = float(two @ two)
        weight = float(one @ two) / square if square else 0.0
        if float((one - weight * two).norm()) > 1e-2 * float(one.norm()) + 1e-12:
            return None
        weights.append(weight)
    return torch.tensor(weights)
