"""What an epsilon means to a person: limits on the success of any attack, by the curve.

The numbers follow from the accounted trade-off curve, not from an epsilon and a delta. They hold
against an attacker who sees every intermediate model and knows all other records.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency
from dpcanary.accounting.curve import GaussianCurve, TradeOffCurve, curve_of_full_batches
from dpcanary.accounting.mechanism import NUM_VALUES, Mechanism, Phase
from dpcanary.accounting.phases import curve_of_phases, has_rounded_noise
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism
from dpcanary.core.adjacency import ADJACENCIES, Adjacency
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.printing import percent, percent_up, table_lines, wrapped
from dpcanary.errors import AccountingError, InputError

Floats = NDArray[np.float64]

FALSE_POSITIVE_RATES = (0.1, 0.01, 0.001)
# Rates and log-odds are searched on a grid, and again between the two points that decide.
_POINTS, _ROUNDS = 2_001, 4
_LARGEST_LOG_ODDS = 40.0


@dataclass(frozen=True)
class AttackLimits:
    """What no attack on a training exceeds, under one adjacency.

    Attributes:
        adjacency: under which a record is protected.
        true_positive_rates: the largest true positive rate at each of some false positive rates, of
            an attack that decides between two neighbouring datasets. Under add/remove adjacency,
            positive means that the record is in the data.
        advantage: the largest difference of true and false positive rate.
        guesses: for each number k, the largest chance to guess which of k equally likely values a
            secret in the record has. The chance without the model is 1 / k.
    """

    adjacency: Adjacency
    true_positive_rates: dict[float, float]
    advantage: float
    guesses: dict[int, float]


@dataclass(frozen=True)
class Meaning:
    """What the epsilons of a training mean.

    Attributes:
        add_remove: limits on what is found out by whether a record is in the data.
        substitute: limits on what is found out of a record's content.
        group_size: the largest number of records of one person, who is protected in place of a
            record; the limits of attacks are then for all of them together.
        is_exact: whether the numbers follow from the curves of the mechanism, up to their
            discretisation on the safe side, or from bounds on these. An attack achieves the rates
            of exact curves; limits on guesses of more than two values are upper bounds in any case.
        by_epsilons: whether the numbers follow from the epsilons alone. Otherwise, if they are not
            exact, they follow from bounds on the curves: those of groups of records that are
            sampled, of shuffled batches, and of more than 100 phases.
    """

    add_remove: AttackLimits
    substitute: AttackLimits
    group_size: int
    is_exact: bool
    by_epsilons: bool = False

    @property
    def guesses(self) -> dict[int, float]:
        """The smaller of both limits on each guess: a training satisfies both adjacencies."""
        return {
            values: min(limit, self.substitute.guesses[values])
            for values, limit in self.add_remove.guesses.items()
        }

    @property
    def numbers(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        of_each = {
            limits.adjacency.value: {
                "true_positive_rates": limits.true_positive_rates,
                "advantage": limits.advantage,
                "guesses": limits.guesses,
            }
            for limits in (self.add_remove, self.substitute)
        }
        return {
            **of_each,
            "guesses": self.guesses,
            "group_size": self.group_size,
            "is_exact": self.is_exact,
        }

    def __str__(self) -> str:
        first, second = self.add_remove, self.substitute
        rows = [
            (f"true positives at {percent(rate)} false ones", percent_up(power),
             percent_up(second.true_positive_rates[rate]), percent(rate))
            for rate, power in first.true_positive_rates.items()
        ]  # fmt: skip
        rows.append(
            ("advantage (true - false positives)", percent_up(first.advantage),
             percent_up(second.advantage), "0 %")
        )  # fmt: skip
        rows += [
            (f"right guess of 1 of {count:,} values", percent_up(chance),
             percent_up(second.guesses[count]), percent(1 / count))
            for count, chance in first.guesses.items()
        ]  # fmt: skip
        group = f", for all {self.group_size} records of a person" if self.group_size > 1 else ""
        by = "bounds on the trade-off curves"
        if self.is_exact or self.by_epsilons:
            by = "the trade-off curves" if self.is_exact else "the epsilons and delta alone"
        names = (ADJACENCIES[limits.adjacency] for limits in (first, second))
        guesses = ", ".join(
            f"{percent_up(chance)} for {count:,} equally likely values"
            for count, chance in self.guesses.items()
        )
        return "\n".join(
            [
                wrapped(
                    "What this means, if the training is what is accounted: limits that no attack"
                    f" exceeds{group}, by {by}."
                ),
                "",
                *table_lines(("at most", *names, "without the model"), rows),
                "",
                wrapped(
                    "The training satisfies both adjacencies, so the smaller limit on a guess"
                    f" holds: {guesses}."
                ),
            ]
        )


@dataclass(frozen=True)
class EpsilonCurve(TradeOffCurve):
    """The curve of (epsilon, delta)-DP (Kairouz et al., 2015).

    Attributes:
        epsilon_given: at least 0; may be infinite.
        delta_given: from 0 to 1.
    """

    epsilon_given: float
    delta_given: float

    def epsilon(self, delta: float) -> float:
        """Its own epsilon at its own delta or a larger one; smaller deltas have none."""
        if checked_real("delta", delta, most=1.0) < self.delta_given:
            raise AccountingError(
                f"no epsilon at a delta below {self.delta_given:g}: the curve is that of"
                f" ({self.epsilon_given:g}, {self.delta_given:g})-DP"
            )
        return self.epsilon_given

    def _fnr(self, fpr: Floats) -> Floats:
        rest = 1 - self.delta_given
        if self.epsilon_given == np.inf:
            return np.where(fpr > 0, 0.0, rest)
        steep = rest - np.exp(self.epsilon_given) * fpr
        flat = np.exp(-self.epsilon_given) * (rest - fpr)
        return np.asarray(np.maximum(np.maximum(steep, flat), 0.0))


def limits_of_curve(
    curve: TradeOffCurve,
    *,
    adjacency: Adjacency | str = Adjacency.SUBSTITUTE,
    values: Sequence[int] = NUM_VALUES,
    false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES,
) -> AttackLimits:
    """The largest success of any attack on a mechanism with a trade-off curve.

    Args:
        curve: of the mechanism.
        adjacency: that the curve is under.
        values: numbers of equally likely values that a secret may have, each at least 2.
        false_positive_rates: each above 0 and below 1.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> limits = limits_of_curve(GaussianCurve(1.0))
        >>> round(limits.advantage, 3), round(limits.guesses[2], 3), round(limits.guesses[10], 3)
        (0.383, 0.691, 0.329)
    """
    adjacency = Adjacency(adjacency)
    rates = [checked_real("false_positive_rates", rate, most=1.0) for rate in false_positive_rates]
    counts = [checked_count("values", count, least=2) for count in values]
    return AttackLimits(
        adjacency=adjacency,
        true_positive_rates=dict(zip(rates, (1 - curve.fnr(rates)).tolist(), strict=True)),
        advantage=largest_advantage(curve),
        guesses={count: largest_guess(curve, count, adjacency=adjacency) for count in counts},
    )


def largest_advantage(curve: TradeOffCurve) -> float:
    """The largest TPR - FPR of any test: 1 - f(a) - a, which is concave in a."""
    low, high = -_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS
    largest = 0.0
    for _ in range(_ROUNDS):
        odds = np.linspace(low, high, _POINTS)
        rates = expit(odds)
        gains = 1 - curve.fnr(rates) - rates
        best = int(np.argmax(gains))
        largest = max(largest, float(gains[best]))
        low, high = odds[max(best - 1, 0)], odds[min(best + 1, _POINTS - 1)]
    return largest


def largest_guess(curve: TradeOffCurve, values: int, *, adjacency: Adjacency) -> float:
    """The largest chance to guess which of k equally likely values a record's secret has.

    Under substitute adjacency it is the largest p with p <= 1 - f((1 - p) / (k - 1)), and some
    mechanism attains it for every f that is its own inverse; otherwise it is 1 - f(1 / k), the best
    power of a test whose false positive rate is that of a blind guess (docs/proofs.md).
    """
    if adjacency is not Adjacency.SUBSTITUTE:
        return float(1 - curve.fnr(1 / values))
    # The right side falls with p, and blind guesses satisfy the inequality.
    low, high = float(logit(1 / values)), _LARGEST_LOG_ODDS
    for _ in range(_ROUNDS):
        odds = np.linspace(low, high, _POINTS)
        allowed = expit(odds) <= 1 - curve.fnr(expit(-odds) / (values - 1))
        first = int(np.argmin(allowed)) if not allowed.all() else _POINTS - 1
        low, high = odds[max(first - 1, 0)], odds[first]
    return float(expit(high))


def meaning_of(
    accounted: Mechanism | ShuffledMechanism | EpsilonsByAdjacency | Sequence[Phase],
    *,
    values: Sequence[int] = NUM_VALUES,
    false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES,
    group_size: int = 1,
) -> Meaning:
    """What the epsilons of a training mean, under add/remove and substitute adjacency.

    Args:
        accounted: the training: DP-SGD with Poisson sampling, its phases, or shuffled batches, of
            which the Gaussian curves that are guaranteed are taken. The adjacency of a mechanism is
            not used. Epsilons stand for what they were accounted for if this has exact curves, else
            for themselves, with a warning on the standard error.
        values: see `limits_of_curve`.
        false_positive_rates: at which the largest true positive rates are given.
        group_size: the largest number of records of one person, all of which may hold the secret.
            More than one needs a `Mechanism`.

    Raises:
        InputError: an argument is out of its range.
        AccountingError: no exact curve can be computed.

    Example:
        >>> mechanism = Mechanism("substitute", sample_rate=1.0, num_steps=100,
        ...                       noise_multiplier=20.0)
        >>> meaning = meaning_of(mechanism)
        >>> round(meaning.add_remove.guesses[10], 3), round(meaning.substitute.guesses[10], 3)
        (0.217, 0.329)
    """
    size = checked_count("group_size", group_size)
    if size > 1 and not isinstance(accounted, Mechanism):
        raise InputError(f"group_size is {size}: several records of a person need a Mechanism")
    match accounted:
        case Mechanism():
            return _meaning_by(
                lambda adjacency: _curve(accounted, adjacency, size),
                values,
                false_positive_rates,
                group_size=size,
                is_exact=size == 1 or accounted.sample_rate == 1,
            )
        case ShuffledMechanism():
            return _meaning_by(
                lambda adjacency: curve_of_full_batches(accounted.under(adjacency).guaranteed),
                values,
                false_positive_rates,
                is_exact=False,
            )
        case EpsilonsByAdjacency():
            return _meaning_of_accounted(accounted, values, false_positive_rates)
        case _:
            return _meaning_by(
                lambda adjacency: curve_of_phases(accounted, adjacency),
                values,
                false_positive_rates,
                is_exact=not has_rounded_noise(accounted),
            )


def _meaning_of_accounted(
    epsilons: EpsilonsByAdjacency, values: Sequence[int], false_positive_rates: Sequence[float]
) -> Meaning:
    """By the exact curves of what was accounted where these are known, else by the epsilons."""
    if training := epsilons.mechanism or epsilons.phases:
        try:
            return meaning_of(training, values=values, false_positive_rates=false_positive_rates)
        except AccountingError as error:
            print(f"warning: limits by the epsilons alone: {error}", file=sys.stderr)
    return meaning_of_epsilons(
        add_remove=epsilons.add_remove,
        substitute=epsilons.substitute,
        delta=epsilons.delta,
        values=values,
        false_positive_rates=false_positive_rates,
    )


def meaning_of_epsilons(
    *,
    add_remove: float,
    substitute: float,
    delta: float,
    values: Sequence[int] = NUM_VALUES,
    false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES,
) -> Meaning:
    """What two epsilons at one delta mean where the training is not known, or has no exact curve.

    The numbers are larger than those of `meaning_of`.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> meaning = meaning_of_epsilons(add_remove=1.0, substitute=2.0, delta=1e-5)
        >>> round(meaning.guesses[10], 3)
        0.272
    """
    delta = checked_real("delta", delta, most=1.0)
    epsilons = {Adjacency.ADD_REMOVE: add_remove, Adjacency.SUBSTITUTE: substitute}
    for epsilon in epsilons.values():
        if not epsilon >= 0:
            raise InputError(f"epsilon is {epsilon!r}; it must be at least 0")
    return _meaning_by(
        lambda adjacency: EpsilonCurve(epsilons[adjacency], delta),
        values,
        false_positive_rates,
        is_exact=False,
        by_epsilons=True,
    )


def _meaning_by(
    curve: Callable[[Adjacency], TradeOffCurve],
    values: Sequence[int],
    false_positive_rates: Sequence[float],
    *,
    group_size: int = 1,
    is_exact: bool = True,
    by_epsilons: bool = False,
) -> Meaning:
    first, second = (
        limits_of_curve(
            curve(adjacency),
            adjacency=adjacency,
            values=values,
            false_positive_rates=false_positive_rates,
        )
        for adjacency in (Adjacency.ADD_REMOVE, Adjacency.SUBSTITUTE)
    )
    return Meaning(first, second, group_size=group_size, is_exact=is_exact, by_epsilons=by_epsilons)


@dataclass(frozen=True, eq=False)
class _RemovedAndAdded(TradeOffCurve):
    """A group that is replaced by another: it is removed, and the other is added.

    With f the curve of presence against absence, tests of one group against the other have an FNR
    of at least f(1 - g(a)), where g is the inverse of f (Dong, Roth and Su, 2022, group privacy).
    """

    presence: TradeOffCurve
    inverse: TradeOffCurve

    def epsilon(self, delta: float) -> float:
        raise AccountingError(f"no epsilon at delta {delta:g}: use account_group")

    def _fnr(self, fpr: Floats) -> Floats:
        return self.presence.fnr(np.clip(1 - self.inverse.fnr(fpr), 0.0, 1.0))


def _curve(mechanism: Mechanism, adjacency: Adjacency, group_size: int) -> TradeOffCurve:
    # dp-accounting takes a while to import.
    from dpcanary.accounting.exact_trade_off import trade_off_curve

    if group_size == 1:
        return trade_off_curve(mechanism.under(adjacency))
    noise = checked_real("noise_multiplier", mechanism.noise_multiplier)
    if mechanism.sample_rate == 1:
        mu = group_size * sqrt(mechanism.num_steps) / noise
        return GaussianCurve(adjacency.sensitivity * mu)
    from dpcanary.accounting.groups import curves_of_group

    presence, inverse = curves_of_group(mechanism, group_size=group_size)
    if adjacency is Adjacency.ADD_REMOVE:
        return presence
    return _RemovedAndAdded(presence, inverse)
