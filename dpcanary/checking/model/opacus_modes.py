"""Per-record gradients by Opacus, in each of its modes, and its ways to clip."""

import warnings
from copy import deepcopy
from dataclasses import dataclass
from math import sqrt
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dpcanary.checking.model.record_gradients import (
    Batch,
    Gradients,
    Loss,
    losses_alone,
    norms_by_parameter,
    norms_of,
    outputs_of,
    trained,
)
from dpcanary.core.global_generators import seed_torch
from dpcanary.training.modules.kept_state import unchanged_state

MODES = ("hooks", "functorch", "ew", "ghost")
CLIPPINGS = ("flat", "per_layer", "adaptive")
# Smaller gradients and losses than this share of the largest are compared with the share: what is
# left of them when logits of a thousand cancel is rounding.
_LEAST_SHARE = 1e-3
# Bound of clipped norms, beside which the 1e-6 that Opacus adds to them is rounding.
_BOUND = 1e3


@dataclass(frozen=True)
class Compared:
    """Gradients of a mode, compared with those of one record at a time.

    Attributes:
        norm_error: largest relative error of a record's norm.
        errors: largest error of a parameter's gradient, over the record's norm, by parameter; of
            its norm alone in ghost clipping.
        refused: why there is nothing to compare; empty if there is.
    """

    norm_error: float = 0.0
    errors: dict[str, float] | None = None
    refused: str = ""


def compared(
    mode: str, model: nn.Module, batch: Batch, loss: Loss, expected: Gradients
) -> Compared:
    """A mode's gradients of single records, compared with those of autograd.

    Args:
        mode: one of `MODES`.
        model: is copied.
        batch: the records.
        loss: as the user has it; ghost clipping takes the losses of single outputs.
        expected: gradients of one record at a time.
    """
    try:
        if mode == "ghost":
            return _ghost(model, batch, loss, expected)
        gradients = gradients_in(mode, model, batch, loss)
        _check_rows(gradients, len(batch))
    except Exception as error:
        return Compared(refused=f"{type(error).__name__}: {_first_line(error)}")
    norms, errors = norms_of(expected), {}
    for name, own in gradients.items():
        difference = (own - expected[name]).float().flatten(1).norm(dim=1)
        errors[name] = float((difference / yardsticks(norms)).max())
    return Compared(relative_error(norms_of(gradients), norms), errors)


def yardsticks(sizes: Tensor) -> Tensor:
    """By which the errors of records are divided: their sizes, or a share of the largest."""
    return sizes.abs().clamp(min=max(_LEAST_SHARE * float(sizes.abs().max()), 1e-12))


def relative_error(values: Tensor, expected: Tensor) -> float:
    """The largest of the records' errors, each in units of its yardstick."""
    return float(((values.float() - expected).abs() / yardsticks(expected)).max())


def gradients_in(
    mode: str, model: nn.Module, batch: Batch, loss: Loss, *, later_seed: int = 0
) -> Gradients:
    """Gradients of single records that a mode leaves at the parameters; not for ghost clipping.

    Args:
        mode: one of `MODES`, but for "ghost".
        model: is copied.
        batch: the records.
        loss: of outputs and labels.
        later_seed: of random numbers that are drawn in the backward pass.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = _wrapped(mode, deepcopy(model))
        _backward(wrapped, batch, loss, later_seed)
    gradients = {}
    for name, parameter in trained(wrapped._module).items():
        own = getattr(parameter, "grad_sample", None)
        if own is None:
            own = torch.zeros(len(batch), *parameter.shape, dtype=parameter.dtype)
            own = own.to(parameter.device)
        gradients[name] = torch.stack(own).sum(dim=0) if isinstance(own, list) else own.detach()
    return gradients


def _check_rows(gradients: Gradients, count: int) -> None:
    for name, own in gradients.items():
        if len(own) != count:
            raise ValueError(
                f"it gives {name} {len(own)} gradients for {count} records: an input of its layer"
                " must have the records' axis, such as position_ids of shape (records, length) in"
                " place of positions of shape (1, length)"
            )


def _first_line(error: Exception) -> str:
    return [*str(error).splitlines(), ""][0]


def _wrapped(mode: str, model: nn.Module) -> Any:
    from opacus.grad_sample.utils import wrap_model

    further = {"max_grad_norm": 1.0} if mode == "ghost" else {}
    return wrap_model(
        model, grad_sample_mode=mode, batch_first=True, loss_reduction="sum", **further
    )


def _backward(wrapped: Any, batch: Batch, loss: Loss, later_seed: int = 0) -> None:
    """Propagates the records' own losses, so that no layer is blamed for the loss of a batch."""
    with unchanged_state(wrapped):
        seed_torch(0)
        total = losses_alone(outputs_of(wrapped, batch), batch, loss).sum()
        seed_torch(later_seed)
        total.backward()  # type: ignore[no-untyped-call]


def _ghost(model: nn.Module, batch: Batch, loss: Loss, expected: Gradients) -> Compared:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = _wrapped("ghost", deepcopy(model))
        _backward(wrapped, batch, loss)
    norms, by_parameter = norms_of(expected), norms_by_parameter(expected)
    divisors = yardsticks(norms)
    errors = {
        name: float(((parameter._norm_sample - by_parameter[name]).abs() / divisors).max())  # type: ignore[attr-defined]
        for name, parameter in trained(wrapped._module).items()
    }
    return Compared(relative_error(wrapped.get_norm_sample(), norms), errors)


def clipping_error(clipping: str, expected: Gradients) -> float:
    """The error of the sum that Opacus's optimiser makes of gradients that are right.

    Args:
        clipping: one of `CLIPPINGS`.
        expected: gradients of one record at a time, of which one at least is not 0.

    Returns:
        The distance from the sum of clipped gradients, over C: half of those that are not 0 are
        clipped.
    """
    from opacus.optimizers import get_optimizer_class

    limit, norms = _BOUND, norms_of(expected)
    unit = limit / float(norms[norms > 0].median())
    expected = {name: own * unit for name, own in expected.items()}
    parameters = {name: nn.Parameter(torch.zeros_like(own[0])) for name, own in expected.items()}
    count = len(next(iter(expected.values())))
    each = limit / sqrt(len(parameters))
    further: dict[str, Any] = {}
    if clipping == "adaptive":
        further = {
            "target_unclipped_quantile": 0.5,
            "clipbound_learning_rate": 0.2,
            "max_clipbound": 1e6,
            "min_clipbound": 1e-6,
            "unclipped_num_std": 1.0,
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = get_optimizer_class(clipping, distributed=False, grad_sample_mode="hooks")(
            torch.optim.SGD([*parameters.values()], lr=1.0),
            noise_multiplier=1e-9,
            max_grad_norm=[each] * len(parameters) if clipping == "per_layer" else limit,
            expected_batch_size=count,
            **further,
        )
        for name, parameter in parameters.items():
            parameter.grad_sample = expected[name].clone()  # type: ignore[attr-defined]
        optimizer.clip_and_accumulate()
    by_parameter, norms = norms_by_parameter(expected), norms_of(expected)
    square = 0.0
    for name, parameter in parameters.items():
        own, bound = (by_parameter[name], each) if clipping == "per_layer" else (norms, limit)
        factors = (bound / own.clamp(min=1e-12)).clamp(max=1.0)
        clipped_sum = torch.einsum("i,i...->...", factors.to(expected[name].dtype), expected[name])
        square += float((parameter.summed_grad - clipped_sum).float().square().sum())  # type: ignore[attr-defined]
    return sqrt(square) / limit


def ghost_losses(criterion: Any, outputs: Tensor, labels: Tensor) -> Tensor | None:
    """Losses of single records as Opacus's wrapper for ghost clipping makes them, shape (records,).

    None if the criterion is not one that it takes.
    """
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    if not isinstance(criterion, nn.Module) or getattr(criterion, "reduction", None) is None:
        return None
    module = SimpleNamespace(loss_reduction=criterion.reduction)
    wrapped = DPLossFastGradientClipping(module, module, criterion, criterion.reduction)
    if outputs.dim() == 3:
        flat = outputs.reshape(-1, outputs.shape[-1])
        losses_of_batch = wrapped(flat, labels.reshape(-1), shape=outputs.shape)
    else:
        losses_of_batch = wrapped(outputs, labels)
    losses: Tensor = losses_of_batch.loss_per_sample
    return losses
