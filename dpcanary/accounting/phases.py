"""The epsilons of a training whose noise or sample rate changes on the way."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import exp, floor, log, nan
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency, account_by_adjacency
from dpcanary.accounting.curve import TradeOffCurve
from dpcanary.accounting.mechanism import AccountingMethod, Mechanism, Phase, Question
from dpcanary.accounting.total_variation import is_within_delta
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_real
from dpcanary.errors import AccountingError, InputError

if TYPE_CHECKING:
    from dpcanary.accounting.pld import ComposedLoss

# With more phases than this, noise is rounded down to about so many values.
_MOST_PHASES = 100
# Intervals of the losses' grid: at most the first; a part of a step's loss; at least the last.
_COARSE, _PART, _FINE = 1e-3, 0.05, 1e-5
_MOST_POINTS = 2_000_000  # of the grids of all phases: some seconds of work


def account_phases(phases: Sequence[Phase], *, delta: float) -> EpsilonsByAdjacency:
    """The epsilons of DP-SGD with Poisson sampling in phases, under each adjacency.

    Privacy loss distributions of the phases are composed. If there are more than 100, noise is
    rounded down, which errs on the safe side: by 1.4 % at most if it changes by a factor of 4.
    Where their grid would have millions of points, it is coarser, which errs on that side too.

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
    merged = _few(phases)
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
        add_remove, substitute = (
            _composed(merged, adjacency, delta).epsilon(delta) for adjacency in adjacencies
        )
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
        phases=tuple(_merged(phases)),
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


def has_rounded_noise(phases: Sequence[Phase]) -> bool:
    """Whether noise is rounded down, since there are too many phases."""
    return len(_merged(phases)) > _MOST_PHASES


def _few(phases: Sequence[Phase]) -> list[Phase]:
    """The phases that are composed."""
    merged = _merged(phases)
    return _merged(_rounded(merged)) if len(merged) > _MOST_PHASES else merged


def _merged(phases: Sequence[Phase]) -> list[Phase]:
    """The phases, of which those with equal noise and sample rate are one."""
    if not phases:
        raise InputError("phases is empty: no step was accounted")
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
        InputError: there is no phase, or one is out of its range.
        AccountingError: dp-accounting cannot represent a phase.
    """
    from dpcanary.accounting.exact_trade_off import LossCurve  # loads slowly

    return LossCurve.of(_composed(_few(phases), adjacency, delta=0.5))  # curves have no delta


@dataclass(frozen=True)
class _QuestionOfPhases(Question):
    """The question for the epsilon of several phases, which its mechanism stands for."""

    num_phases: int = field(kw_only=True)

    def refusal(self, reason: str, *, instead: str) -> AccountingError:
        del instead  # Phases have no choice of method.
        adjacency = self.mechanism.adjacency.value
        return AccountingError.about(
            f"{self.num_phases} phases under {adjacency}, delta={self.delta:g}",
            reason=reason,
            instead="raise the noise multiplier or delta",
        )


def _composed(phases: Sequence[Phase], adjacency: Adjacency, delta: float) -> "ComposedLoss":
    """The loss of all phases, on one grid; it does not depend on delta, which is checked.

    Raises:
        AccountingError: dp-accounting cannot represent a phase, or delta is too small.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from dpcanary.accounting import pld

    mechanisms = [Mechanism(adjacency, **vars(phase)).collapsed() for phase in phases]
    steps = sum(mechanism.num_steps for mechanism in mechanisms)
    # Only a sampled mechanism has the rounding errors of all steps; see `collapsed`.
    rarest = min(mechanisms, key=lambda mechanism: mechanism.sample_rate)
    question = _QuestionOfPhases(rarest.after(steps), delta, num_phases=len(phases))
    pld.check_delta(question, delta)
    with pld.arithmetic_guard(question):
        interval = _shared_interval(mechanisms)
        losses = (
            pld.connect_the_dots(mechanism, interval).self_compose(mechanism.num_steps)
            for mechanism in mechanisms
        )
        loss = reduce(PrivacyLossDistribution.compose, losses)
    return pld.ComposedLoss(question, loss, pld.round_off(steps))


def _shared_interval(mechanisms: Sequence[Mechanism]) -> float:
    """The interval of the grid of all losses, as far as time and memory allow.

    On a coarser grid losses are rounded up further, so no epsilon comes out too small.
    """
    from dpcanary.accounting.pld import least_interval, span

    losses = [
        mechanism.adjacency.sensitivity * mechanism.sample_rate / mechanism.noise_multiplier
        for mechanism in mechanisms
    ]
    return max(
        grid_interval(min(losses)),
        sum(map(span, mechanisms)) / _MOST_POINTS,
        *(least_interval(mechanism, pessimistic=True) for mechanism in mechanisms),
    )
