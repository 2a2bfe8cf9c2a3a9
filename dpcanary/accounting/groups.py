"""The epsilons of a group: of all records of one person, say, of which there are at most k.

Of k records, each enters a batch by itself, so a batch has a binomial number of them. If they are
added or removed, the dominating pair of a step is the mixture of Gaussians whose means are these
numbers, against the Gaussian at 0 [Choquette-Choo et al., 2024]. If all k are replaced, they are
removed and others added: Theorem 4.1 of Pradhan et al., with the group in place of a record. With
full batches the sum moves by 2 k C, and the closed form is exact.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, nan, sqrt

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_mixture_gaussian_mechanism,
)
from scipy.optimize import brentq
from scipy.stats import binom

from dpcanary.accounting.by_adjacency import account_by_adjacency
from dpcanary.accounting.curve import TradeOffCurve
from dpcanary.accounting.exact_trade_off import LossCurve
from dpcanary.accounting.mechanism import FAILURES, Mechanism, Question, raise_if_short_of_memory
from dpcanary.accounting.phases import grid_interval
from dpcanary.accounting.pld import ComposedLoss, least_delta
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.errors import AccountingError


@dataclass(frozen=True)
class EpsilonsOfGroup:
    """Upper bounds on the epsilons of a group of records, at one delta.

    Attributes:
        group_size: the largest number of records of a group.
        add_remove: whether the group's records are in the data at all.
        substitute: what the group's records say. NaN where the rounding errors of the accounting
            hide it, as for large groups with little noise.
        delta: of both.
    """

    group_size: int
    add_remove: float
    substitute: float
    delta: float


def account_group(mechanism: Mechanism, *, group_size: int, delta: float) -> EpsilonsOfGroup:
    """The epsilons of DP-SGD with Poisson sampling for a group of records.

    Args:
        mechanism: what is accounted; its own adjacency is not used.
        group_size: the largest number of records of a group, at least 1.
        delta: between 0 and 1, both excluded.

    Raises:
        InputError: an argument is out of its range.
        AccountingError: dp-accounting cannot represent the mechanism.

    Example:
        >>> mechanism = Mechanism("substitute", sample_rate=1.0, num_steps=100,
        ...                       noise_multiplier=40.0)
        >>> of_four = account_group(mechanism, group_size=4, delta=1e-5)
        >>> round(of_four.add_remove, 2), round(of_four.substitute, 2)
        (4.38, 10.0)
    """
    delta = checked_real("delta", delta, most=1.0)
    size = checked_count("group_size", group_size)
    noise = checked_real("noise_multiplier", mechanism.noise_multiplier)
    if size == 1:  # a substitution has a tighter bound of its own
        single = account_by_adjacency(mechanism, delta=delta)
        return EpsilonsOfGroup(size, single.add_remove, single.substitute, delta)
    if mechanism.sample_rate == 1:
        mu = size * sqrt(mechanism.num_steps) / noise
        add_remove, substitute = (gdp_epsilon(mu=m, delta=delta) for m in (mu, 2 * mu))
        return EpsilonsOfGroup(size, add_remove, substitute, delta)
    subject = f"a group of {size}, {mechanism.in_words()}, delta={delta:g}"
    instead = "raise noise_multiplier or delta, or account for a smaller group"
    floor = least_delta(mechanism.num_steps)
    if delta / 2 < floor:
        reason = f"rounding errors are too large for a delta below {2 * floor:.2g}"
        raise AccountingError.about(subject, reason=reason, instead=instead)
    try:
        loss = _composed(mechanism, size)
        # The arithmetic of the composition adds up to this much to a delta.
        slack = floor / 5
        add_remove = float(loss.get_epsilon_for_delta(delta - slack))
        substitute = _replaced(loss, delta, slack)
    except FAILURES as error:
        raise_if_short_of_memory(error)
        reason = f"dp-accounting failed ({error})"
        raise AccountingError.about(subject, reason=reason, instead=instead) from error
    if not add_remove < inf:
        raise AccountingError.about(subject, reason="epsilon is infinite", instead=instead)
    return EpsilonsOfGroup(size, add_remove, substitute, delta)


def curves_of_group(
    mechanism: Mechanism, *, group_size: int
) -> tuple[TradeOffCurve, TradeOffCurve]:
    """The curves of a group's presence against its absence, and of absence against presence.

    Each is the inverse of the other. For sample rates below 1.

    Raises:
        AccountingError: dp-accounting cannot represent the mechanism.
    """
    subject = f"a trade-off curve of a group of {group_size}, {mechanism.in_words()}"
    try:
        loss = _composed(mechanism, group_size)
    except FAILURES as error:
        raise_if_short_of_memory(error)
        raise AccountingError.about(
            subject,
            reason=f"dp-accounting failed ({error})",
            instead="raise noise_multiplier, or account for a smaller group",
        ) from error
    question = Question(mechanism.under(Adjacency.ADD_REMOVE), delta=0.5)
    composed = ComposedLoss(question, loss, least_delta(mechanism.num_steps) / 5)
    curve = LossCurve.of(composed)
    return curve, LossCurve(composed, curve.flat, curve.steep)


@lru_cache(maxsize=2)
def _composed(mechanism: Mechanism, size: int) -> PrivacyLossDistribution:
    """The loss of all steps, of a group that is there against one that is not."""
    numbers = np.arange(size + 1)
    shares = binom.pmf(numbers, size, mechanism.sample_rate)
    scale = size * mechanism.sample_rate / mechanism.noise_multiplier
    step = from_mixture_gaussian_mechanism(
        mechanism.noise_multiplier,
        [float(number) for number in numbers],
        [float(share) for share in shares / shares.sum()],
        value_discretization_interval=grid_interval(scale),
    )
    return step.self_compose(mechanism.num_steps)


def _replaced(loss: PrivacyLossDistribution, delta: float, slack: float) -> float:
    """The solution of (1 + exp(eps)) d(eps) = delta, doubled: one removal and one addition."""

    def excess(epsilon: float) -> float:
        return (1 + exp(epsilon)) * (float(loss.get_delta_for_epsilon(epsilon)) + slack) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        if exp(high) * slack > delta:
            return nan
        high *= 1.2
    return 2 * float(brentq(excess, 0.0, high, xtol=1e-9))
