"""The epsilons of a training whose noise or sample rate changes on the way."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from math import exp, floor, log, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency, account_by_adjacency
from dpcanary.accounting.curve import TradeOffCurve
from dpcanary.accounting.mechanism import (
    FAILURES,
    AccountingMethod,
    Mechanism,
    Phase,
    Question,
    raise_if_short_of_memory,
)
from dpcanary.accounting.total_variation import is_within_delta
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_real
from dpcanary.errors import AccountingError, InputError

# With more phases than this, noise is rounded down to about so many values.
_MOST_PHASES = 100
# Intervals of the losses' grid: at most the first; a part of a step's loss; at least the last.
_COARSE, _PART, _FINE = 1e-3, 0.05, 1e-5


def account_phases(phases: Sequence[Phase], *, delta: float) -> EpsilonsByAdjacency:
    """The epsilons of DP-SGD with Poisson sampling in phases, under each adjacency.

    Privacy loss distributions of the phases are composed. If there are more than 100, noise is
    rounded down, which errs on the safe side: by 1.4 % at most if it changes by a factor of 4.

    Args:
        phases: in any order; the composition does not depend on it.
        delta: between 0 and 1, both excluded.

    Returns:
        The epsilons; `group_privacy` is NaN if there are several phases.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> halves = [Phase(2.0, 0.1, 100), Phase(2.0, 0.1, 100)]
        >>> round(account_phases(halves, delta=1e-5).substitute, 2)
        6.54
    """
    delta = checked_real("delta", delta, most=1.0)
    if not phases:
        raise InputError("phases is empty: no step was accounted")
    merged = _merged(phases)
    if len(merged) > _MOST_PHASES:
        merged = _merged(_rounded(merged))
    if len(merged) == 1:
        [phase] = merged
        mechanism = Mechanism(
            Adjacency.SUBSTITUTE,
            sample_rate=phase.sample_rate,
            num_steps=phase.num_steps,
            noise_multiplier=phase.noise_multiplier,
        )
        return account_by_adjacency(mechanism, delta=delta)
    adjacencies = (Adjacency.ADD_REMOVE, Adjacency.SUBSTITUTE)
    try:
        add_remove, substitute = (_composed(merged, adjacency, delta) for adjacency in adjacencies)
        method = AccountingMethod.PLD
    except AccountingError as error:
        print(f"warning: trying loose instead: {error}", file=sys.stderr)
        add_remove, substitute = (_loose(merged, adjacency, delta) for adjacency in adjacencies)
        method = AccountingMethod.LOOSE
    epsilons = {Adjacency.ADD_REMOVE: add_remove, Adjacency.SUBSTITUTE: substitute}
    for adjacency in adjacencies:
        if is_within_delta([Mechanism(adjacency, **vars(phase)) for phase in merged], delta=delta):
            epsilons[adjacency] = 0.0
    return EpsilonsByAdjacency(
        epsilons[Adjacency.ADD_REMOVE],
        epsilons[Adjacency.SUBSTITUTE],
        nan,
        delta,
        method,
        phases=tuple(merged),
    )


def _loose(phases: Sequence[Phase], adjacency: Adjacency, delta: float) -> float:
    """By Rényi divergences, which add up."""
    from dpcanary.accounting.loose import renyi_divergences, smallest_epsilon

    mechanisms = [Mechanism(adjacency, **vars(phase)) for phase in phases]

    def divergences(orders: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = [
            mechanism.num_steps * renyi_divergences(mechanism, orders) for mechanism in mechanisms
        ]
        return sum(parts[1:], start=parts[0])

    return smallest_epsilon(divergences, delta=delta)


def grid_interval(loss_of_step: float) -> float:
    """The interval of a grid of losses, for steps that mostly lose so much."""
    return max(_FINE, min(_COARSE, _PART * loss_of_step))


def _merged(phases: Sequence[Phase]) -> list[Phase]:
    steps: dict[tuple[float, float], int] = {}
    for phase in phases:
        Mechanism(Adjacency.SUBSTITUTE, **vars(phase))  # checks it
        key = phase.noise_multiplier, phase.sample_rate
        steps[key] = steps.get(key, 0) + phase.num_steps
    return [Phase(*key, count) for key, count in steps.items()]


def _rounded(phases: Sequence[Phase]) -> list[Phase]:
    """The phases with fewer different noises, none of them larger than before."""
    least = min(phase.noise_multiplier for phase in phases)
    factor = max(phase.noise_multiplier for phase in phases) / least
    share = max(log(factor) / _MOST_PHASES, 1e-9)

    def rounded(noise: float) -> float:
        return least * exp(share * floor(log(noise / least) / share))

    return [replace(phase, noise_multiplier=rounded(phase.noise_multiplier)) for phase in phases]


def curve_of_phases(phases: Sequence[Phase], adjacency: Adjacency) -> TradeOffCurve:
    """The trade-off curve of all phases, by the exact losses.

    Raises:
        AccountingError: dp-accounting cannot represent a phase.
    """
    merged = _merged(phases)
    if len(merged) > _MOST_PHASES:
        merged = _merged(_rounded(merged))
    # Imported here, since these modules load slowly.
    from dpcanary.accounting.exact_trade_off import LossCurve, errors_by_threshold
    from dpcanary.accounting.pld import ComposedLoss, least_delta

    num_steps = sum(phase.num_steps for phase in merged)
    subject = f"a trade-off curve of {len(merged)} phases under {adjacency.value}"
    accountant = _accountant(merged, adjacency, subject, instead="raise the noise multiplier")
    question = Question(Mechanism(adjacency, **vars(merged[0])), delta=0.5)
    # dp-accounting has no public access to an accountant's loss.
    composed = ComposedLoss(question, accountant._pld, least_delta(num_steps) / 5)
    towards0, towards1 = composed.directions
    steep = errors_by_threshold(towards0)
    flat = steep if towards1 is towards0 else errors_by_threshold(towards1)
    return LossCurve(composed, steep, flat)


def _composed(phases: Sequence[Phase], adjacency: Adjacency, delta: float) -> float:
    from dpcanary.accounting.pld import least_delta

    subject = f"{len(phases)} phases under {adjacency.value}, delta={delta:g}"
    instead = "raise the noise multiplier or delta"
    num_steps = sum(phase.num_steps for phase in phases)
    if delta < least_delta(num_steps):
        reason = f"rounding errors of {num_steps:,} steps are too large for this delta"
        raise AccountingError.about(subject, reason=reason, instead=instead)
    accountant = _accountant(phases, adjacency, subject, instead=instead)
    try:
        return float(accountant.get_epsilon(delta))
    except FAILURES as error:
        raise _failure(error, subject, instead) from error


def _accountant(
    phases: Sequence[Phase], adjacency: Adjacency, subject: str, *, instead: str
) -> Any:
    """dp-accounting's accountant of all phases."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    relation = (
        NeighboringRelation.REPLACE_ONE
        if adjacency is Adjacency.SUBSTITUTE
        else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    scale = min(phase.sample_rate / phase.noise_multiplier for phase in phases)
    accountant = PLDAccountant(relation, grid_interval(adjacency.sensitivity * scale))
    try:
        for phase in phases:
            gaussian = GaussianDpEvent(phase.noise_multiplier)
            full = phase.sample_rate == 1
            event = gaussian if full else PoissonSampledDpEvent(phase.sample_rate, gaussian)
            accountant.compose(event, phase.num_steps)
    except FAILURES as error:
        raise _failure(error, subject, instead) from error
    return accountant


def _failure(error: BaseException, subject: str, instead: str) -> AccountingError:
    raise_if_short_of_memory(error)
    return AccountingError.about(subject, reason=f"dp-accounting failed ({error})", instead=instead)
