"""Gradients of single records in every mode of Opacus, and its clipping, as findings."""

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from time import perf_counter

import numpy as np
import torch
from torch import nn

from dpcanary.checking.findings import Finding
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
from dpcanary.checking.model.record_findings import CheckedModel, first_names
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
    trained,
    unconnected,
)
from dpcanary.checking.model.record_mixing import with_record
from dpcanary.training.modules.kept_state import unchanged_state

# Relative errors that are put down to the precision of the parameters.
_ERRORS = {torch.float64: 1e-6, torch.float32: 2e-3}
_HALF = 5e-2
# Steps of training before the second comparison.
STEPS = 3
LOSSES_OF_GHOST = "ghost: losses of single records"
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


def gradient_findings(
    checked: CheckedModel,
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
    moved(copied, batch, loss, num_steps=STEPS)
    points.append((copied, one_at_a_time(copied, batch, loss, is_random=checked.is_random)))
    largest = {
        name: max(float(norms_by_parameter(gradients)[name].max()) for _, gradients in points)
        for name in at_start
    }
    still = {name for name in largest if largest[name] == 0}
    yield trained_parameters(still, still and unconnected(copied, batch, loss), model, optimizer)
    dtypes = {own.dtype for own in trained(copied).values()}
    limit = max(_ERRORS.get(dtype, _HALF) for dtype in dtypes)
    for mode in MODES:
        yield _mode(mode, points, checked, limit)
    yield _ghost_loss(points[0][0], batch, loss)
    for clipping in CLIPPINGS:
        yield _clipping(clipping, points, limit)


def trained_parameters(
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
        notes.append(f"{len(frozen)} parameters are frozen: {first_names(frozen)}")
    every_name = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    shared = sorted(every_name - {name for name, _ in model.named_parameters()})
    if shared:
        notes.append(f"shared with another name: {first_names(shared)}")
    wrong = []
    if not parameters:
        wrong.append("no parameter requires a gradient")
    if still & unconnected:
        wrong.append(f"no record moves {first_names(sorted(still & unconnected))}")
    if still - unconnected:
        # Such as a bias of a layer whose outputs are subtracted: useless, and as private.
        notes.append(
            f"the gradients of {first_names(sorted(still - unconnected))} are 0 for every record:"
            " noise alone moves them"
        )
    if missing:
        wrong.append(f"the optimizer does not have {first_names(missing)}")
    return Finding(
        "trained parameters",
        "every parameter that requires a gradient gets one, and the optimizer has it",
        "; ".join(wrong) or f"all {len(parameters)} tensors get gradients",
        not wrong,
        "what you think is trained is not: it stays as it was, or gets noise alone",
        "; ".join(notes) if not wrong else "",
    )


def name_of_mode(mode: str) -> str:
    """The property that the gradients of one of `MODES` are right."""
    return f"{mode}: {'norms' if mode == 'ghost' else 'gradients'} of single records"


def _mode(
    mode: str, points: Iterable[tuple[nn.Module, Gradients]], checked: CheckedModel, limit: float
) -> Finding:
    is_ghost, batch, loss = mode == "ghost", checked.batch, checked.loss
    name, expected = name_of_mode(mode), "those of one record at a time by autograd"
    norm_error, errors, meaning = 0.0, dict[str, float](), _WRONG_NORMS
    for model, reference in points:
        comparison = compared(mode, model, batch, loss, reference)
        if comparison.errors is None:
            note = f"this mode fails on the model: {comparison.refused}"
            return Finding(name, expected, "cannot be compared", True, "", note, judged=False)
        # Python's `max` may lose a NaN, which is no right gradient.
        norm_error = float(np.maximum(norm_error, comparison.norm_error))
        for parameter, error in comparison.errors.items():
            errors[parameter] = float(np.maximum(error, errors.get(parameter, 0.0)))
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
        text = f"{what} wrong by up to {largest:.1%}: in {first_names(wrong)}"
    return Finding(name, expected, text, holds, meaning)


def _draws_later(mode: str, checked: CheckedModel) -> bool:
    """Whether gradients change with random numbers that are drawn after the forward pass."""
    first, second = (
        gradients_in(mode, checked.model, checked.batch, checked.loss, later_seed=seed)
        for seed in (1, 2)
    )
    return not all(
        torch.allclose(first[name], second[name], rtol=1e-3, equal_nan=True) for name in first
    )


def _change_with_others(mode: str, checked: CheckedModel, limit: float) -> bool:
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
    name, expected = LOSSES_OF_GHOST, "those of the loss of each record alone"
    with torch.no_grad(), unchanged_state(model):
        outputs = outputs_of(model, batch)
        alone = losses_alone(outputs, batch, loss)
        try:
            ghost = ghost_losses(loss, outputs, batch.labels)
        except Exception as error:
            note = f"Opacus's loss fails: {type(error).__name__}: {error}"
            return Finding(name, expected, "cannot be compared", True, "", note, judged=False)
    if ghost is None or ghost.shape != alone.shape:
        note = (
            "ghost clipping takes a loss of PyTorch, such as nn.CrossEntropyLoss, or nn.MSELoss of"
            " outputs that have the labels' shape, and not this one"
        )
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
    error = float(np.max(errors, initial=0.0))
    observed = f"sums of autograd's gradients within {error:.2g} C"
    return Finding(
        name,
        expected,
        observed if errors else "nothing to clip: all gradients of the records are 0",
        error <= limit,
        "what one record adds to the sum is not bounded by C",
    )
