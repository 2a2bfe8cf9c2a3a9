"""Gradients of one record at a time, by autograd alone: what every other way is compared with."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dpcanary.core.global_generators import seed_torch
from dpcanary.errors import InputError
from dpcanary.training.modules.dropout import dropping_layers, turn_off_dropout
from dpcanary.training.modules.kept_state import unchanged_state

Loss = Callable[[Any, Tensor], Tensor]
Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """Records: what the model is called with, and the labels.

    Attributes:
        inputs: tensors whose first axis is the records', as a tuple or a dict.
        labels: shape (records, ...).
    """

    inputs: tuple[Any, ...] | dict[str, Any]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, index: slice | Sequence[int]) -> "Batch":
        """Some of the records."""
        return Batch(tree_map(lambda tensor: tensor[index], self.inputs), self.labels[index])

    def on(self, device: torch.device) -> "Batch":
        """The records on a device."""
        return Batch(
            tree_map(lambda tensor: tensor.to(device), self.inputs), self.labels.to(device)
        )


def outputs_of(model: nn.Module, batch: Batch) -> Any:
    """The model's outputs for a batch; of a dict or an output object, its logits."""
    is_dict = isinstance(batch.inputs, dict)
    outputs = model(**batch.inputs) if is_dict else model(*batch.inputs)  # type: ignore[arg-type]
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    return getattr(outputs, "logits", outputs)


def own_loss(model: nn.Module, batch: Batch) -> Loss | None:
    """The loss that a model of Hugging Face computes if it gets labels; None for other models.

    It is the model's `loss_function` of logits and labels, which can be called for each record.

    Raises:
        InputError: if the model computes another loss.
    """
    function = getattr(model, "loss_function", None)
    if function is None or not isinstance(batch.inputs, dict):
        return None

    def loss(outputs: Any, labels: Tensor) -> Tensor:
        arguments = {"logits": outputs, "pooled_logits": outputs, "labels": labels}
        value: Tensor = function(**arguments, vocab_size=outputs.shape[-1], config=model.config)
        return value

    with torch.no_grad(), unchanged_state(model):
        seed_torch(0)
        expected = model(**batch.inputs, labels=batch.labels).loss
        seed_torch(0)
        value = loss(outputs_of(model, batch), batch.labels)
    if not torch.allclose(value, expected, rtol=1e-4):
        raise InputError(
            f"the model's loss is {float(expected):.6g}, and its loss_function of logits and labels"
            f" is {float(value):.6g}: give the loss as a function of logits and labels"
        )
    return loss


def losses_alone(outputs: Tensor, batch: Batch, loss: Loss) -> Tensor:
    """The loss of each record alone, shape (records,), from the outputs for all of them."""
    return torch.stack(
        [
            loss(outputs[index : index + 1], batch.labels[index : index + 1])
            for index in range(len(batch))
        ]
    )


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by name; shared ones once."""
    return {name: own for name, own in model.named_parameters() if own.requires_grad}


def one_at_a_time(
    model: nn.Module, batch: Batch, loss: Loss, *, is_random: bool = False
) -> Gradients:
    """Gradients of the loss of each record alone, shape (records, ...) by parameter.

    Every record meets the model in the same state: a counter of passes, for example, changes what
    the next pass gives.

    Args:
        model: the module.
        batch: the records.
        loss: of outputs and labels.
        is_random: whether the model draws random numbers. Then the outputs are those of the whole
            batch, so that each record meets the numbers that it meets there.
    """
    parameters = trained(model)
    rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
    with unchanged_state(model):
        seed_torch(0)
        together = losses_alone(outputs_of(model, batch), batch, loss) if is_random else None
        for index in range(len(batch)):
            if together is None:
                with unchanged_state(model):
                    alone = batch.rows(slice(index, index + 1))
                    own = loss(outputs_of(model, alone), alone.labels)
                    gradients = _gradients(own, parameters)
            else:
                gradients = _gradients(together[index], parameters, retain_graph=True)
            for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
                rows[name].append(torch.zeros_like(parameter) if gradient is None else gradient)
    return {name: torch.stack(own).detach() for name, own in rows.items()}


def _gradients(
    loss: Tensor, parameters: dict[str, nn.Parameter], *, retain_graph: bool = False
) -> tuple[Tensor | None, ...]:
    """None for parameters that the loss does not depend on."""
    return torch.autograd.grad(
        loss, [*parameters.values()], allow_unused=True, retain_graph=retain_graph
    )


def unconnected(model: nn.Module, batch: Batch, loss: Loss) -> set[str]:
    """Names of the parameters that the loss of a batch does not depend on at all."""
    parameters = trained(model)
    with unchanged_state(model):
        gradients = _gradients(loss(outputs_of(model, batch), batch.labels), parameters)
    return {name for name, own in zip(parameters, gradients, strict=True) if own is None}


def norms_of(gradients: Gradients) -> Tensor:
    """Norms of whole gradients, shape (records,)."""
    norms: Tensor = torch.stack([*norms_by_parameter(gradients).values()]).norm(dim=0)
    return norms


def norms_by_parameter(gradients: Gradients) -> dict[str, Tensor]:
    """Shape (records,) each, in single precision."""
    return {name: own.float().flatten(1).norm(dim=1) for name, own in gradients.items()}


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[list[str]]:
    """Sets dropout to 0 for a while, since its masks differ between passes; gives its names."""
    dropping = dropping_layers(model)
    before = [getattr(layer, attribute) for _, layer, attribute in dropping]
    turn_off_dropout(model)
    try:
        yield [name for name, *_ in dropping]
    finally:
        for (_, layer, attribute), share in zip(dropping, before, strict=True):
            setattr(layer, attribute, share)


def moved(model: nn.Module, batch: Batch, loss: Loss, *, num_steps: int) -> None:
    """Trains the model for a few steps, so that what starts at 0 does not stay there."""
    optimizer = torch.optim.AdamW([*trained(model).values()], lr=1e-3)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss(outputs_of(model, batch), batch.labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    optimizer.zero_grad()
