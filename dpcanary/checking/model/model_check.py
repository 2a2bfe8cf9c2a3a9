"""The check of a user's own model, loss and records in every gradient mode of Opacus."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, default_collate

from dpcanary.checking.findings import CheckResult
from dpcanary.checking.model.gradient_findings import (
    LOSSES_OF_GHOST,
    STEPS,
    gradient_findings,
    name_of_mode,
    trained_parameters,
)
from dpcanary.checking.model.opacus_modes import MODES
from dpcanary.checking.model.record_findings import (
    CheckedModel,
    finite_numbers,
    loss_of_one_record,
    records_do_not_mix,
    state_of_model,
    unbalanced,
)
from dpcanary.checking.model.record_gradients import (
    Batch,
    Loss,
    outputs_of,
    own_loss,
    trained,
    without_dropout,
)
from dpcanary.checking.model.record_mixing import mixing_layer, random_layer, weights_in_loss
from dpcanary.core.argument_checks import checked_count
from dpcanary.core.global_generators import global_generators_kept
from dpcanary.errors import InputError
from dpcanary.training.modules.kept_state import unchanged_state


@dataclass(frozen=True)
class ModelCheck(CheckResult):
    """The result of `check_model`. `print` shows it as text.

    Attributes:
        findings: one for each property.
        num_records: whose gradients were compared.
        seconds: that it took.
    """

    num_records: int
    seconds: float

    @property
    def compares_nothing(self) -> bool:
        """Whether every mode of Opacus refuses the model, so that no gradient was compared."""
        modes = [finding for finding in self.findings if finding.name in map(name_of_mode, MODES)]
        return bool(modes) and all(not finding.judged for finding in modes)

    def __str__(self) -> str:
        not_seen = [
            "other records and labels than these, and parameters after more training",
            "sampling, noise, and what your loop does (`dpcanary check` of the loop)",
        ]
        right = "No gradient of the records that were compared is wrong, in any mode of Opacus."
        judged = [mode for mode in MODES if name_of_mode(mode) not in self.not_judged]
        if len(judged) < len(MODES):
            others = ", ".join(mode for mode in MODES if mode not in judged)
            right = (
                f"No gradient of the records that were compared is wrong in {', '.join(judged)}."
                f" Not compared, since the model cannot be trained so: {others}."
            )
        if LOSSES_OF_GHOST in self.not_judged and name_of_mode("ghost") not in self.not_judged:
            right += " The losses of ghost clipping were not compared: see its note."
        return self.text(
            right=right,
            wrong=".",
            nothing="Nothing was compared: every mode of Opacus refuses the model, so the gradients"
            " of its records are unknown. The notes say why. For recurrent layers and attention of"
            " PyTorch, opacus.layers has twins that it takes; a transformer with embeddings of"
            " positions needs position_ids among the inputs, of shape (records, length).",
            scope=f"{self.num_records} records, at the start and after {STEPS} steps,"
            f" {self.seconds:.0f} seconds.",
            not_seen=not_seen,
        )


def check_model(
    model: nn.Module,
    records: Dataset[Any] | Mapping[str, Tensor] | tuple[Any, Tensor],
    loss: Loss | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    num_records: int = 6,
    on_estimate: Callable[[float], object] | None = None,
) -> ModelCheck:
    """Compares the gradients of single records, as Opacus makes them, with those of autograd.

    Each record's gradient is computed alone, and compared with that of every gradient mode (hooks,
    functorch, expanded weights, ghost clipping) and their clipped sums with those of Opacus's
    optimisers, at the start and after a few steps. Layers in which records depend on each other,
    losses that weigh records, and parameters that do not train are named.

    Args:
        model: with outputs of shape (records, ...), or an object or dict with such `logits`. It is
            not changed. Dropout is turned off.
        records: a dataset of (input, ..., label) or of dicts with an entry `labels`, such a dict of
            a whole batch, or a tuple of inputs and labels; inputs are tensors, a tuple of tensors,
            or a dict of keyword arguments.
        loss: of outputs and labels, a single number; by default that of a Hugging Face model whose
            records are dicts, else cross-entropy.
        optimizer: of your loop: parameters that it does not have are named.
        num_records: that are compared; the rest is not used. Twice as many are needed.
        on_estimate: called with the seconds that it will take, before it starts.

    Raises:
        InputError: if the model or the loss cannot be called, or there are too few records.
    """
    start = perf_counter()
    count = checked_count("num_records", num_records, least=2)
    parameter = next(model.parameters(), None)
    batch = _batch_of(records, 2 * count)
    if parameter is not None:  # as a loop does
        batch = batch.on(parameter.device)
    batch, others = batch.rows(slice(0, count)), batch.rows(slice(count, 2 * count))
    copied = deepcopy(model).train()
    with without_dropout(copied) as dropout, global_generators_kept():
        criterion = loss or _default_loss(copied, batch)
        # A layer that starts from the first batch's statistics does so in the first pass alone.
        untouched = deepcopy(copied)
        _called(copied, batch, criterion)
        state = state_of_model(untouched, batch, others)
        random = random_layer(copied, batch)
        checked = CheckedModel(copied, batch, others, criterion, random is not None)
        mixing = mixing_layer(copied, batch, others, criterion, is_random=checked.is_random)
        is_trained = bool(trained(copied))
        with_gradients = mixing is None and is_trained
        finite = finite_numbers(checked, records, with_gradients=with_gradients)
        findings = [records_do_not_mix(mixing, dropout, random), state, finite]
        is_alone = mixing is None and finite.holds
        if is_alone:
            weights = [
                weights_in_loss(copied, rows, criterion) for rows in (batch, unbalanced(batch))
            ]
            findings.append(loss_of_one_record(checked, weights))
            is_alone = all(own is not None for own in weights)
        # Gradients of single records are not compared where a record has none of its own.
        findings += (
            gradient_findings(checked, model, optimizer, on_estimate)
            if is_alone and is_trained
            else [trained_parameters(set(), set(), model, optimizer)]
        )
    return ModelCheck(tuple(findings), count, perf_counter() - start)


def assert_model(model: nn.Module, records: Any, loss: Loss | None = None, **others: Any) -> None:
    """Fails a test if gradients of single records of a model are wrong in any mode of Opacus.

    Args:
        model: as in `check_model`.
        records: see `check_model`.
        loss: see `check_model`.
        others: its other arguments.

    Raises:
        AssertionError: with the whole result, if a property does not hold.
    """
    __tracebackhide__ = True
    result = check_model(model, records, loss, **others)
    result.raise_if_wrong("gradients of single records are wrong")


def _default_loss(model: nn.Module, batch: Batch) -> Loss:
    try:
        return own_loss(model, batch) or nn.CrossEntropyLoss()
    except InputError:
        raise
    except Exception as error:
        raise _not_called(error, batch) from error


def _batch_of(records: Any, count: int) -> Batch:
    if isinstance(records, DataLoader):
        raise InputError("records is a DataLoader: give its dataset, or one of its batches")
    if not isinstance(records, tuple | Mapping):
        if not hasattr(records, "__len__"):
            raise InputError("records have no length: give a list of some of them")
        rows = [_row(records[index]) for index in range(min(count, len(records)))]
        try:
            records = default_collate(rows) if rows else ((), torch.zeros(0))
        except (RuntimeError, TypeError) as error:
            raise InputError(
                f"the records cannot be put into one batch: {error}; pad them to one length, and"
                " drop what is no number"
            ) from error
        if not isinstance(records, Mapping):
            *inputs, labels = records
            records = tuple(inputs), labels
    if isinstance(records, Mapping):
        inputs = dict(records)
        name = next((name for name in ("labels", "label") if name in inputs), None)
        if name is None:
            raise InputError(f"records have {', '.join(inputs)}; they need an entry 'labels', too")
        records = inputs, inputs.pop(name)
    if len(records) < 2:
        raise InputError("records must have inputs and labels: give a tuple of both")
    *several, labels = records
    inputs = several[0] if len(several) == 1 else tuple(several)
    if not isinstance(labels, Tensor) or not labels.dim():
        raise InputError(
            f"the labels of the records are of type {type(labels).__name__}: give a tensor with a"
            " label for each record"
        )
    if len(labels) < count:
        raise InputError(
            f"there are {len(labels)} records; the check needs {count}: lower num_records"
        )
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    named = inputs if isinstance(inputs, Mapping) else {"inputs": inputs}
    for name, value in named.items():
        if not all(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            raise InputError(
                f"{name!r} of the records is no tensor of numbers: drop it, or make it one"
            )
    for tensor in tree_leaves(inputs):
        if not tensor.dim() or len(tensor) != len(labels):
            raise InputError(
                f"there are {len(labels)} labels, and an input has shape {(*tensor.shape,)}: its"
                " first axis must be that of the records"
            )
    return Batch(tree_map(lambda tensor: tensor[:count], inputs), labels[:count])


def _row(row: Any) -> Any:
    """A record; lists of numbers, as datasets of Hugging Face have them, become tensors."""
    if not isinstance(row, Mapping):
        return row
    return {
        name: torch.tensor(value) if isinstance(value, list) else value
        for name, value in row.items()
    }


def _called(model: nn.Module, batch: Batch, loss: Loss) -> None:
    """An error of the model or the loss is the user's to see, with what was called."""
    try:
        with unchanged_state(model):
            outputs = outputs_of(model, batch)
        losses = loss(outputs, batch.labels)
    except Exception as error:
        raise _not_called(error, batch) from error
    if not isinstance(outputs, Tensor) or len(outputs) != len(batch):
        raise InputError(
            "the model must give one tensor, or an object with one as its logits, whose first axis"
            " is that of the records"
        )
    if not isinstance(losses, Tensor) or losses.dim():
        raise InputError("the loss must be a single number: the mean or the sum over the records")


def _not_called(error: Exception, batch: Batch) -> InputError:
    return InputError(
        f"the model and its loss fail on {len(batch)} records ({type(error).__name__}: {error})"
    )
