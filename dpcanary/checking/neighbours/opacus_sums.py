"""Trainings with Opacus: every optimizer that is made inside of a check passes its sums on."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from math import nan
from numbers import Real
from typing import Any

from torch import Tensor

from dpcanary.accounting.of_opacus import captured_by
from dpcanary.checking.neighbours.session import Session, Setting
from dpcanary.errors import InputError
from dpcanary.watching.watched_models import rows_of, wrapped_models

# Keys of an optimizer's groups that are not settings of a step.
_OF_GROUPS = ("params", "foreach", "fused", "capturable", "differentiable", "maximize")


@contextmanager
def optimizers_recorded(session: Session) -> Iterator[None]:
    """While inside, the sums of Opacus's optimizers pass through a session."""
    if not _is_used():
        yield
        return
    from opacus.optimizers import DPOptimizer

    models: list[Any] = []
    with (
        _noting_new(wrapped_models(), models.append),
        _noting_new(DPOptimizer, lambda own: _Recorded(own, session, models)),
        _adaptive_clipping(session),
    ):
        yield


@contextmanager
def _noting_new(kind: Any, note: Callable[[Any], object]) -> Iterator[None]:
    """While inside, every object of a class is noted when it is made."""
    original: Callable[..., None] = kind.__init__

    @wraps(original)
    def initialise(own: Any, /, *args: Any, **keys: Any) -> None:
        original(own, *args, **keys)
        note(own)

    kind.__init__ = initialise
    try:
        yield
    finally:
        kind.__init__ = original


def _is_used() -> bool:
    if "opacus" in sys.modules:
        return True
    try:
        import opacus  # noqa: F401 - the training may import it later
    except ModuleNotFoundError:
        return False
    return True


@contextmanager
def _adaptive_clipping(session: Session) -> Iterator[None]:
    """The noisy counts by which ghost clipping adapts its bound are released, as sums are."""
    try:
        from opacus.utils.adaptive_clipping import adaptive_clipping_utils as utils

        kind: Any = utils.DPTensorFastGradientAdaptiveClipping
    except (ImportError, AttributeError):  # older versions have none
        yield
        return
    original = kind._update_clip_and_noise

    def update(loss: Any, norms: Tensor) -> Any:
        raw = float((norms <= loss.module.max_grad_norm).sum())
        return session.count("unclipped records", raw, original(loss, norms))

    kind._update_clip_and_noise = update
    try:
        yield
    finally:
        kind._update_clip_and_noise = original


class _Recorded:
    """An optimizer whose noisy sums are noted, and replaced by those of the first run."""

    def __init__(self, optimizer: Any, session: Session, models: Sequence[Any]) -> None:
        if hasattr(optimizer, "_ddp_per_layer_hook"):
            raise InputError(
                "the check of neighbours does not take clipping per layer in the hooks of"
                " DistributedDataParallel: take DPDDP, or flat clipping"
            )
        self._optimizer, self._session, self._models = optimizer, session, models
        self._names: list[str] = []
        inner = optimizer.add_noise
        optimizer.add_noise = lambda *args, **keys: self._add_noise(inner, *args, **keys)
        session.at_end.append(self._accounted)

    def _add_noise(self, inner: Callable[..., object], *args: Any, **keys: Any) -> object:
        optimizer, session = self._optimizer, self._session
        parameters = [*optimizer.params]
        raw = getattr(optimizer, "unclipped_num", None)
        raw = nan if raw is None else float(raw)
        # Copies: an optimizer may add the noise in place.
        sums = [_whole(p.summed_grad).detach().clone() for p in parameters]
        limit = float(optimizer.max_grad_norm)
        settings = self._settings()
        returned = inner(*args, **keys)
        if not self._names:
            self._names = self._names_of(parameters)
        noisy = session.step(
            dict(zip(self._names, sums, strict=True)),
            [p.grad for p in parameters],
            limit=limit,
            settings=settings,
            parameters=dict(zip(self._names, parameters, strict=True)),
        )
        for parameter, kept in zip(parameters, noisy, strict=True):
            parameter.grad = kept
        if raw == raw:
            optimizer.unclipped_num = session.count(
                "unclipped records", raw, optimizer.unclipped_num
            )
        return returned

    def _names_of(self, parameters: Sequence[Tensor]) -> list[str]:
        names = {
            id(own): name
            for model in self._models
            for name, own in model._module.named_parameters()
        }
        return [names.get(id(p), f"parameter {place}") for place, p in enumerate(parameters)]

    def _settings(self) -> dict[str, Setting]:
        optimizer = self._optimizer
        settings: dict[str, Any] = {
            "max_grad_norm": optimizer.max_grad_norm,
            "noise multiplier": optimizer.noise_multiplier,
            "expected batch size": optimizer.expected_batch_size,
            "loss reduction": optimizer.loss_reduction,
            "draws in a step": _draws(optimizer),
        }
        if not hasattr(optimizer, "accumulate"):
            settings["records in the batch"] = rows_of(optimizer.params[0].grad_sample)
        for place, bound in enumerate(getattr(optimizer, "max_grad_norms", [])):
            settings[f"max_grad_norm of parameter {place}"] = bound
        for place, group in enumerate(optimizer.param_groups):
            where = f" of group {place}" if len(optimizer.param_groups) > 1 else ""
            for name, value in group.items():
                if name not in _OF_GROUPS:
                    settings[f"{_WORDS.get(name, name)}{where}"] = value
        rates = [cell for cell in captured_by(optimizer.step_hook) if isinstance(cell, float)]
        if rates:
            settings["sample rate"] = rates[0]
        return {name: _setting(value) for name, value in settings.items() if value is not None}

    def _accounted(self) -> dict[str, Setting]:
        cells = captured_by(self._optimizer.step_hook)
        accountant = next((cell for cell in cells if hasattr(cell, "history")), None)
        if accountant is None:
            return {}
        return {"accounted (noise, rate, steps)": _setting(list(accountant.history))}


_WORDS = {"lr": "learning rate"}


def _setting(value: Any) -> Setting:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, Real):
        return float(value)
    return repr(value)


def _draws(optimizer: Any) -> int:
    try:
        return int(optimizer.accumulated_iterations)
    except (ValueError, AttributeError):
        return 1


def _whole(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
