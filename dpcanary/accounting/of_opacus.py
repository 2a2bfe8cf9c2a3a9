"""The epsilons of a training with Opacus, which reports the one under add/remove alone."""

from typing import Any

from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency, account_by_adjacency
from dpcanary.errors import InputError


def epsilons_of(
    privacy_engine_or_optimizer: Any,
    *,
    delta: float,
    sample_rate: float | None = None,
    num_steps: int | None = None,
) -> EpsilonsByAdjacency:
    """The epsilons of a training with Opacus under each adjacency.

    The noise of Opacus has the standard deviation `noise_multiplier * max_grad_norm`. Replacing a
    record moves the clipped sum by up to `2 * max_grad_norm`, adding one by `max_grad_norm`. That
    is why the same noise gives different epsilons. Opacus accounts the latter.

    Args:
        privacy_engine_or_optimizer: Opacus's `PrivacyEngine`, which knows the steps that have been
            done; or its `DPOptimizer`, for a training that is planned.
        delta: between 0 and 1, both excluded.
        sample_rate: expected batch size over the number of records; by default that of the steps
            that the engine has accounted.
        num_steps: steps of the whole training; by default those that the engine has accounted.

    Raises:
        InputError: if noise or sample rate changed in the training, if the object is none of
            Opacus, or if it does not know what is not given.
        AccountingError: see `account_by_adjacency`.
    """
    noise_multiplier, known_rate, known_steps = accounted_steps(privacy_engine_or_optimizer)
    rate = known_rate if sample_rate is None else sample_rate
    steps = known_steps if num_steps is None else num_steps
    if noise_multiplier is None:
        raise InputError(
            "the privacy engine has accounted no step yet: give the optimizer that make_private"
            " returned, with sample_rate and num_steps; or ask after training"
        )
    if rate is None or steps is None:
        raise InputError(
            "an optimizer does not know its sample rate and number of steps: give sample_rate"
            " (expected batch size / number of records) and num_steps"
        )
    return account_by_adjacency(
        sample_rate=rate, noise_multiplier=noise_multiplier, num_steps=steps, delta=delta
    )


def accounted_steps(
    privacy_engine_or_optimizer: Any,
) -> tuple[float | None, float | None, int | None]:
    """The noise multiplier, sample rate and number of steps that an object of Opacus knows.

    Raises:
        InputError: if noise or sample rate changed in the training, or it is no object of Opacus.
    """
    found = privacy_engine_or_optimizer
    if hasattr(found, "noise_multiplier"):
        return float(found.noise_multiplier), None, None
    history = getattr(getattr(found, "accountant", None), "history", None)
    if history is None:
        raise InputError(
            "privacy_engine_or_optimizer must be a PrivacyEngine or a DPOptimizer of Opacus, not"
            f" {type(found).__name__}"
        )
    if len(history) > 1:
        raise InputError(
            f"noise or sample rate changed in the training ({len(history)} phases): only trainings"
            " with constant ones can be accounted here"
        )
    if not history:
        return None, None, None
    [(noise_multiplier, sample_rate, num_steps)] = history
    return float(noise_multiplier), float(sample_rate), int(num_steps)
