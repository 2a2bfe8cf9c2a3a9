"""What is compared before the gradients: numbers, mixing, state, and the loss of a batch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, TensorDataset

from dpcanary.checking.findings import Finding
from dpcanary.checking.model.record_gradients import (
    Batch,
    Loss,
    norms_of,
    one_at_a_time,
    outputs_of,
)
from dpcanary.checking.model.record_mixing import kept_of_records
from dpcanary.training.modules.kept_state import unchanged_state

# So many names are shown.
_MOST_NAMED = 4


@dataclass(frozen=True)
class CheckedModel:
    """What is checked: a copy of the model, some records and as many others, and the loss."""

    model: nn.Module
    batch: Batch
    others: Batch
    loss: Loss
    is_random: bool


def finite_numbers(checked: CheckedModel, records: Any, *, with_gradients: bool) -> Finding:
    """Whether a record of those that can be looked at, a parameter or a gradient is NaN."""
    wrong = [
        f"parameter {name}" for name, own in checked.model.named_parameters() if _odd(own).any()
    ]
    if isinstance(records, TensorDataset):
        inputs: Any = records.tensors
    else:
        inputs = [] if isinstance(records, Dataset) else records
    for values in [
        *tree_leaves(inputs),
        *tree_leaves([checked.batch.inputs, checked.batch.labels]),
    ]:
        if isinstance(values, Tensor) and not wrong and _odd(values).any():
            of_records = _odd(values).reshape(len(values), -1).any(dim=1)
            wrong.append(_numbered("the values of", of_records))
    if with_gradients and not wrong:
        gradients = one_at_a_time(
            checked.model, checked.batch, checked.loss, is_random=checked.is_random
        )
        of_records = _odd(norms_of(gradients))
        if of_records.any():
            wrong.append(_numbered("the gradients of", of_records))
    return Finding(
        "finite numbers",
        "no value, parameter or gradient of a record is NaN or infinite",
        f"NaN or infinite: {first_names(wrong)}" if wrong else "all are finite",
        not wrong,
        "NaN passes clipping and noise, so the model shows that the record was in a batch: mend the"
        " records, the model or the loss",
    )


def _odd(values: Tensor) -> Tensor:
    return ~values.detach().isfinite()


def _numbered(what: str, rows: Tensor) -> str:
    indices = torch.nonzero(rows)[:, 0].tolist()
    kind = "records" if len(indices) > 1 else "record"
    return f"{what} {kind} {first_names(map(str, indices))}"


def records_do_not_mix(layer: str | None, dropout: list[str], random: str | None) -> Finding:
    """What `mixing_layer`, the dropout that is off, and `random_layer` say."""
    notes = []
    if dropout:
        notes.append(f"dropout is turned off for the check: {first_names(dropout)}")
    if random:
        notes.append(
            f"{random} draws random numbers; all passes are compared with the same ones. What is"
            " drawn independently of the records is no leak"
        )
    return Finding(
        "records do not mix",
        "the output for a record, and the gradients in its layers, do not change with the other"
        " records of its batch",
        f"they do in {layer}" if layer else "outputs do not depend on other records",
        layer is None,
        "a record's gradient holds others, or is left out because of them: clipping it does not"
        " bound what one record changes; use layers that treat each record alone, such as group or"
        " layer norm in place of batch norm",
        "; ".join(notes) if layer is None else "",
    )


def state_of_model(untouched: nn.Module, batch: Batch, others: Batch) -> Finding:
    """What the passes of a model keep that has not been called before."""
    kept = kept_of_records(untouched, batch, others)
    parameters = {name for name, _ in untouched.named_parameters()}
    words = [
        f"{'parameter' if name in parameters else 'buffer'} {name}" if " " not in name else name
        for name in kept
    ]
    return Finding(
        "state of the model",
        "a forward pass keeps nothing of the records in the model",
        f"it changes {first_names(words)}"
        if kept
        else "forward passes keep nothing of the records",
        not kept,
        "what is kept of private records is released with the model, without noise: use layers"
        " without such state, such as group or layer norm, track_running_stats=False, or"
        " max_norm=None",
    )


def unbalanced(batch: Batch) -> Batch:
    """As many records, all but one of them the first: weights by a batch's labels differ then."""
    differs = (batch.labels != batch.labels[0]).reshape(len(batch), -1).any(dim=1)
    other = int(differs.int().argmax()) or len(batch) - 1
    return batch.rows([0] * (len(batch) - 1) + [other])


def loss_of_one_record(checked: CheckedModel, weights: Sequence[Tensor | None]) -> Finding:
    """Whether records count alike, by their `weights_in_loss` of some batches."""
    expected = "a batch's loss is the mean or the sum of the records' own losses"
    meaning = (
        "the loss of a record depends on the others of its batch, as in contrastive losses, or in a"
        " mean over all words of a batch with padding: what is clipped is not the gradient of the"
        " record alone. Take the mean of each record's own loss"
    )
    with torch.no_grad(), unchanged_state(checked.model):
        of_outputs = (*outputs_of(checked.model, checked.batch).shape,)
    of_labels = (*checked.batch.labels.shape,)
    if of_outputs == (*of_labels, 1):
        meaning = (
            f"outputs have shape {of_outputs} and labels {of_labels}: a loss such as MSELoss"
            " broadcasts them, and compares each output with the labels of all records. Give both"
            " one shape, for example by squeeze(-1) of the outputs"
        )
    name = "loss of one record"
    weighted = [own for own in weights if own is not None]
    if len(weighted) < len(weights):
        return Finding(name, expected, "it depends on other records", False, meaning)
    count = len(checked.batch)
    scaled = torch.cat(weighted) * count
    if not len(scaled):
        note = "the loss of each record alone has no gradient in its outputs"
        return Finding(name, expected, "cannot be compared", True, meaning, note, judged=False)
    low, high = float(scaled.min()), float(scaled.max())
    note = _note_on_probabilities(checked.model, checked.batch, checked.loss)
    is_sum = abs(low / count - 1) < 1e-2 and abs(high / count - 1) < 1e-2
    if is_sum or (abs(low - 1) < 1e-2 and abs(high - 1) < 1e-2):
        return Finding(name, expected, "a sum" if is_sum else "a mean", True, meaning, note)
    text = f"records count {low:.3g} to {high:.3g} times as much as alone"
    return Finding(name, expected, text, False, meaning)


def _note_on_probabilities(model: nn.Module, batch: Batch, loss: Loss) -> str:
    """What is private, but trains badly: a softmax before a loss that applies one."""
    with torch.no_grad(), unchanged_state(model):
        outputs = outputs_of(model, batch).float()
    is_applied = isinstance(loss, nn.CrossEntropyLoss) and outputs.dim() > 1
    sums = (outputs.sum(dim=-1 if outputs.dim() == 2 else 1) - 1).abs() if is_applied else outputs
    if is_applied and outputs.shape[1] > 1 and bool((outputs >= 0).all()) and sums.max() < 1e-4:
        return "the outputs are probabilities, and the loss takes logits: remove the last softmax"
    return ""


def first_names(names: Iterable[str]) -> str:
    """The first of some names, and how many more there are."""
    names = [*names]
    more = len(names) - _MOST_NAMED
    return ", ".join([*islice(names, _MOST_NAMED), *([f"{more} more"] if more > 0 else [])])
