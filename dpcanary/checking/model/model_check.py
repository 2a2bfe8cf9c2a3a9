"""The check of a user's own model, loss and records in every gradient mode of Opacus."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from dpcanary.checking.findings import CheckResult, Finding
from dpcanary.checking.model.opacus_modes import (
    CLIPPINGS,
    MODES,
    clipping_error,
    compared,
    ghost_losses,
    gradients_in,
    relative_error,
    yardsticks,
)
from dpcanary.checking.model.record_gradients import (
    Batch,
    Gradients,
    Loss,
    losses_alone,
    moved,
    norms_by_parameter,
    norms_of,
    one_at_a_time,
    outputs_of,
    own_loss,
    trained,
    unconnected,
    without_dropout,
)
from dpcanary.checking.model.record_mixing import (
    kept_of_records,
    mixing_layer,
    random_layer,
    weights_in_loss,
    with_record,
)
from dpcanary.core.argument_checks import checked_count
from dpcanary.errors import InputError
from dpcanary.training.modules.kept_state import unchanged_state

# Relative errors that are put down to the precision of the parameters.
_ERRORS = {torch.float64: 1e-6, torch.float32: 2e-3}
_HALF = 5e-2
# Steps of training before the second comparison.
_STEPS = 3
_WRONG_NORMS = (
    "records are clipped by a wrong norm, so the sensitivity is not C: use another mode, or another"
    " version of Opacus"
)
_WRONG_GRADIENTS = (
    "the loop trains on other gradients than those of your loss: use another mode, or another"
    " version of Opacus. These are what is clipped, so their sensitivity is C all the same, if each"
    " depends on its record alone: among other records, those of the compared ones were the same"
)
_MIXED_GRADIENTS = (
    "a record's gradient changes with the other records of its batch, so clipping it does not bound"
    " what one record changes: use another mode, or another version of Opacus"
)
_RANDOM_GRADIENTS = (
    "the mode draws other random numbers in the backward pass than those of the outputs, so its"
    " gradients cannot be compared with the outputs' own"
)
# So many names are shown.
_MOST_NAMED = 4


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
        modes = [finding for finding in self.findings if finding.name in map(_name_of, MODES)]
        return bool(modes) and all(not finding.judged for finding in modes)

    def __str__(self) -> str:
        not_seen = [
            "other records and labels than these, and parameters after more training",
            "sampling, noise, and what your loop does (`dpcanary check` of the loop)",
        ]
        right = "No gradient of the records that were compared is wrong, in any mode of Opacus."
        judged = [mode for mode in MODES if _name_of(mode) not in self.not_judged]
        if len(judged) < len(MODES):
            others = ", ".join(mode for mode in MODES if mode not in judged)
            right = (
                f"No gradient of the records that were compared is wrong in {', '.join(judged)}."
                f" Not compared, since the model cannot be trained so: {others}."
            )
        return self.text(
            right=right,
            wrong=".",
            nothing="Nothing was compared: every mode of Opacus refuses the model, so the gradients"
            " of its records are unknown. The notes say why. For recurrent layers and attention of"
            " PyTorch, opacus.layers has twins that it takes; a transformer with embeddings of"
            " positions needs position_ids among the inputs, of shape (records, length).",
            scope=f"{self.num_records} records, at the start and after {_STEPS} steps,"
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
            a whole batch, or a pair of inputs and labels; inputs are a tensor, a tuple of tensors,
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
    with without_dropout(copied) as dropout, torch.random.fork_rng(_devices_of(copied)):
        criterion = loss or _default_loss(copied, batch)
        # A layer that starts from the first batch's statistics does so in the first pass alone.
        untouched = deepcopy(copied)
        _called(copied, batch, criterion)
        state = _state(untouched, batch, others)
        random = random_layer(copied, batch)
        checked = _Checked(copied, batch, others, criterion, random is not None)
        mixing = mixing_layer(copied, batch, others, criterion, is_random=checked.is_random)
        finite = _finite(checked, records, with_gradients=mixing is None)
        findings = [_mixing(mixing, dropout, random), state, finite]
        is_alone = mixing is None and finite.holds
        if is_alone:
            weights = [
                weights_in_loss(copied, rows, criterion) for rows in (batch, _unbalanced(batch))
            ]
            findings.append(_loss(checked, weights))
            is_alone = all(own is not None for own in weights)
        # Gradients of single records are not compared where a record has none of its own.
        findings += (
            _gradients(checked, model, optimizer, on_estimate)
            if is_alone
            else [_trained(set(), set(), model, optimizer)]
        )
    return ModelCheck(tuple(findings), count, perf_counter() - start)


@dataclass(frozen=True)
class _Checked:
    """What is checked: a copy of the model, some records and as many others, and the loss."""

    model: nn.Module
    batch: Batch
    others: Batch
    loss: Loss
    is_random: bool


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
        rows = [_row(records[index]) for index in range(min(count, len(records)))]
        try:
            records = default_collate(rows) if rows else ((), ())
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
    inputs, labels = records
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
        if len(tensor) != len(labels):
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


def _devices_of(model: nn.Module) -> list[int]:
    return sorted({own.device.index or 0 for own in model.parameters() if own.is_cuda})


def _finite(checked: _Checked, records: Any, *, with_gradients: bool) -> Finding:
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
        f"NaN or infinite: {_named(wrong)}" if wrong else "all are finite",
        not wrong,
        "NaN passes clipping and noise, so the model shows that the record was in a batch: mend the"
        " records, the model or the loss",
    )


def _odd(values: Tensor) -> Tensor:
    return ~values.detach().isfinite()


def _numbered(what: str, rows: Tensor) -> str:
    indices = torch.nonzero(rows)[:, 0].tolist()
    kind = "records" if len(indices) > 1 else "record"
    return f"{what} {kind} {_named(map(str, indices))}"


def _mixing(layer: str | None, dropout: list[str], random: str | None) -> Finding:
    notes = []
    if dropout:
        notes.append(f"dropout is turned off for the check: {_named(dropout)}")
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


def _state(untouched: nn.Module, batch: Batch, others: Batch) -> Finding:
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
        f"it changes {_named(words)}" if kept else "forward passes keep nothing of the records",
        not kept,
        "what is kept of private records is released with the model, without noise: use layers"
        " without such state, such as group or layer norm, track_running_stats=False, or"
        " max_norm=None",
    )


def _unbalanced(batch: Batch) -> Batch:
    """As many records, all but one of them the first: weights by a batch's labels differ then."""
    differs = (batch.labels != batch.labels[0]).reshape(len(batch), -1).any(dim=1)
    other = int(differs.int().argmax()) or len(batch) - 1
    return batch.rows([0] * (len(batch) - 1) + [other])


def _loss(checked: _Checked, weights: Sequence[Tensor | None]) -> Finding:
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


def _gradients(
    checked: _Checked,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    on_estimate: Callable[[float], object] | None,
) -> Iterator[Finding]:
    """All that is compared at the start, and after some steps."""
    copied, batch, loss = checked.model, checked.batch, checked.loss
    began = perf_counter()
    at_start = one_at_a_time(copied, batch, loss, is_random=checked.is_random)
    if on_estimate:
        # Two points, four modes and the reference, each about as long as this.
        on_estimate((perf_counter() - began) * 2 * (1 + len(MODES)))
    points = [(deepcopy(copied), at_start)]
    moved(copied, batch, loss, num_steps=_STEPS)
    points.append((copied, one_at_a_time(copied, batch, loss, is_random=checked.is_random)))
    largest = {
        name: max(float(norms_by_parameter(gradients)[name].max()) for _, gradients in points)
        for name in at_start
    }
    still = {name for name in largest if largest[name] == 0}
    yield _trained(still, still and unconnected(copied, batch, loss), model, optimizer)
    dtypes = {own.dtype for own in trained(copied).values()}
    limit = max(_ERRORS.get(dtype, _HALF) for dtype in dtypes)
    for mode in MODES:
        yield _mode(mode, points, checked, limit)
    yield _ghost_loss(points[0][0], batch, loss)
    for clipping in CLIPPINGS:
        yield _clipping(clipping, points, limit)


def _trained(
    still: set[str],
    unconnected: set[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
) -> Finding:
    """What is trained, where no record moves some parameters, of which some are not connected."""
    parameters = trained(model)
    missing: list[str] = []
    if optimizer is not None:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        missing = [name for name, parameter in parameters.items() if id(parameter) not in held]
    frozen = [name for name, own in model.named_parameters() if not own.requires_grad]
    notes = []
    if frozen:
        notes.append(f"{len(frozen)} parameters are frozen: {_named(frozen)}")
    every_name = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    shared = sorted(every_name - {name for name, _ in model.named_parameters()})
    if shared:
        notes.append(f"shared with another name: {_named(shared)}")
    wrong = []
    if not parameters:
        wrong.append("no parameter requires a gradient")
    if still & unconnected:
        wrong.append(f"no record moves {_named(sorted(still & unconnected))}")
    if still - unconnected:
        # Such as a bias of a layer whose outputs are subtracted: useless, and as private.
        notes.append(
            f"the gradients of {_named(sorted(still - unconnected))} are 0 for every record: noise"
            " alone moves them"
        )
    if missing:
        wrong.append(f"the optimizer does not have {_named(missing)}")
    return Finding(
        "trained parameters",
        "every parameter that requires a gradient gets one, and the optimizer has it",
        "; ".join(wrong) or f"all {len(parameters)} tensors get gradients",
        not wrong,
        "what you think is trained is not: it stays as it was, or gets noise alone",
        "; ".join(notes) if not wrong else "",
    )


def _name_of(mode: str) -> str:
    return f"{mode}: {'norms' if mode == 'ghost' else 'gradients'} of single records"


def _mode(
    mode: str, points: Iterable[tuple[nn.Module, Gradients]], checked: _Checked, limit: float
) -> Finding:
    is_ghost, batch, loss = mode == "ghost", checked.batch, checked.loss
    name, expected = _name_of(mode), "those of one record at a time by autograd"
    norm_error, errors, meaning = 0.0, dict[str, float](), _WRONG_NORMS
    for model, reference in points:
        comparison = compared(mode, model, batch, loss, reference)
        if comparison.errors is None:
            note = f"this mode fails on the model: {comparison.refused}"
            return Finding(name, expected, "cannot be compared", True, "", note, judged=False)
        norm_error = max(norm_error, comparison.norm_error)
        for parameter, error in comparison.errors.items():
            errors[parameter] = max(error, errors.get(parameter, 0.0))
    # A comparison with NaN is false, so what is within the limit is asked for.
    wrong = sorted(
        (own for own in errors if not errors[own] <= limit), key=lambda own: -errors[own]
    )
    holds = not wrong and norm_error <= limit
    if not holds and not is_ghost:
        meaning = _WRONG_GRADIENTS
        if checked.is_random and _draws_later(mode, checked):
            text = "cannot be compared"
            return Finding(name, expected, text, True, "", _RANDOM_GRADIENTS, judged=False)
        if _change_with_others(mode, checked, limit):
            meaning = _MIXED_GRADIENTS
    text = f"norms within {norm_error:.2g}"
    if wrong:
        largest = norm_error if is_ghost else errors[wrong[0]]
        what = "norms" if is_ghost else "gradients"
        text = f"{what} wrong by up to {largest:.1%}: in {_named(wrong)}"
    return Finding(name, expected, text, holds, meaning)


def _draws_later(mode: str, checked: _Checked) -> bool:
    """Whether gradients change with random numbers that are drawn after the forward pass."""
    first, second = (
        gradients_in(mode, checked.model, checked.batch, checked.loss, later_seed=seed)
        for seed in (1, 2)
    )
    return any(not torch.allclose(first[name], second[name], rtol=1e-3) for name in first)


def _change_with_others(mode: str, checked: _Checked, limit: float) -> bool:
    """Whether the gradients of the first and the last record change with the other records."""
    batch, others, count = checked.batch, checked.others, len(checked.batch)
    together = gradients_in(mode, checked.model, batch, checked.loss)
    divisors = yardsticks(norms_of(together))
    for place in (0, count - 1):
        changed = with_record(others, batch, place)
        changed_gradients = gradients_in(mode, checked.model, changed, checked.loss)
        own = {name: values[place : place + 1] for name, values in together.items()}
        gap = norms_of(
            {name: own[name] - changed_gradients[name][place : place + 1] for name in own}
        )
        if not float(gap[0]) <= limit * float(divisors[place]):
            return True
    return False


def _ghost_loss(model: nn.Module, batch: Batch, loss: Loss) -> Finding:
    name, expected = "ghost: losses of single records", "those of the loss of each record alone"
    with torch.no_grad(), unchanged_state(model):
        outputs = outputs_of(model, batch)
        alone = losses_alone(outputs, batch, loss)
        try:
            ghost = ghost_losses(loss, outputs, batch.labels)
        except Exception as error:
            note = f"Opacus's loss fails: {type(error).__name__}: {error}"
            return Finding(name, expected, "cannot be compared", True, "", note, judged=False)
    if ghost is None or ghost.shape != alone.shape:
        note = "ghost clipping takes losses of PyTorch alone, such as CrossEntropyLoss"
        if ghost is not None:
            note = f"Opacus's losses of the {len(alone)} records have shape {(*ghost.shape,)}"
        return Finding(name, expected, "cannot be compared", True, "", note, judged=False)
    largest = relative_error(ghost, alone)
    return Finding(
        name,
        expected,
        f"within {largest:.2g}" if largest <= 1e-2 else f"wrong by up to {largest:.1%}",
        largest <= 1e-2,
        "records count more or less than alone, for example by ignore_index or padding",
    )


def _clipping(
    clipping: str, points: Iterable[tuple[nn.Module, Gradients]], limit: float
) -> Finding:
    name, expected = f"{clipping} clipping", "the sum of gradients, each clipped to C"
    errors = []
    for _, reference in points:
        if float(norms_of(reference).max()) > 0:
            errors.append(clipping_error(clipping, reference))
    error = max(errors, default=0.0)
    observed = f"sums of autograd's gradients within {error:.2g} C"
    return Finding(
        name,
        expected,
        observed if errors else "nothing to clip: all gradients of the records are 0",
        error <= limit,
        "what one record adds to the sum is not bounded by C",
    )


def _named(names: Iterable[str]) -> str:
    names = [*names]
    more = len(names) - _MOST_NAMED
    return ", ".join([*islice(names, _MOST_NAMED), *([f"{more} more"] if more > 0 else [])])
