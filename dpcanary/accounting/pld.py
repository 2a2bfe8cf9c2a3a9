"""Epsilon from dp-accounting's privacy loss distributions.

The upper epsilon comes from connect-the-dots discretisation [Doroshenko et al., 2022]. It is
pessimistic, but its error is only of the order of the squared grid interval, so it serves as the
estimate too. The lower epsilon comes from rounding every loss down, which costs about half an
interval per step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, exp, expm1, floor, inf, log, log1p, sinh, sqrt

import numpy as np
from dp_accounting.pld.pld_pmf import (
    PLDPmf,
    create_pmf_pessimistic_connect_dots_fixed_gap,
)
from dp_accounting.pld.privacy_loss_distribution import (
    NeighborRel,
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpcanary.accounting.loss_masses import LossMasses
from dpcanary.accounting.mechanism import (
    FAILURES,
    AccountingMethod,
    EpsilonBounds,
    Mechanism,
    Question,
    raise_if_short_of_memory,
)
from dpcanary.core.adjacency import Adjacency
from dpcanary.errors import AccountingError

# Points on a step's grid, and on the composed one: a second or so of work each.
_STEP_POINTS = {True: 1_000_000, False: 200_000}  # pessimistic (vectorised), optimistic (a loop)
_COMPOSED_POINTS = 4_000_000
# Where losses are large, this interval (over sqrt(T)) keeps the epsilon to 1e-5 of itself.
_COARSE_INTERVAL = 1e-3
# exp(-loss) underflows at 745. Beyond that dp-accounting returns a quantile of the loss instead.
_LARGEST_EPSILON = 700.0
INSTEAD = "use method='loose', or 'closed_form' at sample_rate=1"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ComposedLoss:
    """The loss of all steps; `slack` is added to deltas, to have the round-off on the safe side."""

    question: Question
    distribution: PrivacyLossDistribution
    slack: float

    def epsilon(self, delta: float) -> float:
        """Epsilon at a delta; one that is too large for dp-accounting is refused."""
        with arithmetic_guard(self.question):
            epsilon = float(self.distribution.get_epsilon_for_delta(delta - self.slack))
        if not epsilon < _LARGEST_EPSILON:
            raise self.question.refusal(
                f"epsilon is {epsilon:.4g}, and beyond {_LARGEST_EPSILON:g} it underflows",
                instead="raise noise_multiplier, or use method='closed_form' at sample_rate=1",
            )
        return epsilon

    def delta(self, epsilon: float) -> float:
        """Delta at an epsilon."""
        return float(self.distribution.get_delta_for_epsilon(epsilon)) + self.slack

    @property
    def directions(self) -> tuple[PLDPmf, PLDPmf]:
        """Masses by their loss: of world 0 against world 1, and of world 1 against world 0.

        World 0 has the record, so the first is dp-accounting's removal. If both are the same, they
        are one object.
        """
        # dp-accounting has no public access to a single direction.
        return self.distribution._pmf_remove, self.distribution._pmf_add


@contextmanager
def arithmetic_guard(question: Question) -> Iterator[None]:
    """Turns overflow and any other failure inside dp-accounting into a refusal."""
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            yield
    except AccountingError:
        raise
    except FAILURES as error:
        raise_if_short_of_memory(error)
        raise question.refusal(f"dp-accounting failed ({error})", instead=INSTEAD) from error


def composed_losses(
    question: Question, steps: list[int], *, pessimistic: bool
) -> Iterator[ComposedLoss]:
    """The loss after each of several numbers of steps, in place of the mechanism's own number.

    If it is pessimistic, deltas are rounded up (for an upper epsilon), otherwise down.

    Raises:
        AccountingError: dp-accounting cannot represent this mechanism.
    """
    loss_of_step = lru_cache(maxsize=1)(_loss_of_step)
    for num_steps in steps:
        asked = question.after(num_steps)
        # With sampling, all numbers of steps share a step. Without, each has a step of its own.
        step = asked if question.mechanism.sample_rate == 1 else question.after(max(steps))
        composed_steps = asked.mechanism.collapsed().num_steps
        with arithmetic_guard(step):
            loss = loss_of_step(step, pessimistic).self_compose(composed_steps)
        slack = round_off(composed_steps)
        yield ComposedLoss(asked, loss, slack if pessimistic else -slack)


def _loss_of_step(question: Question, pessimistic: bool) -> PrivacyLossDistribution:
    """The loss of one step, on a grid made for the mechanism's number of steps."""
    mechanism = question.mechanism.collapsed()
    substitute = mechanism.adjacency is Adjacency.SUBSTITUTE
    interval = _interval(mechanism, pessimistic)
    coarse = question.method is AccountingMethod.LOOSE
    if pessimistic and not coarse and interval > deviation(mechanism) / 10:
        raise question.refusal("the losses of a step span too wide a grid", instead=INSTEAD)
    if pessimistic:
        return connect_the_dots(mechanism, interval)
    return from_gaussian_mechanism(
        mechanism.noise_multiplier,
        value_discretization_interval=interval,
        sampling_prob=mechanism.sample_rate,
        neighboring_relation=(
            NeighborRel.REPLACE_ONE if substitute else NeighborRel.ADD_OR_REMOVE_ONE
        ),
        pessimistic_estimate=False,
        use_connect_dots=False,
    )


def connect_the_dots(mechanism: Mechanism, interval: float) -> PrivacyLossDistribution:
    """What `from_gaussian_mechanism` makes, but that inverts the loss in Python, point by point."""

    def masses(adjacency: AdjacencyType) -> PLDPmf:
        loss = GaussianPrivacyLoss(
            mechanism.noise_multiplier,
            sampling_prob=mechanism.sample_rate,
            adjacency_type=adjacency,
        )
        bounds = loss.connect_dots_bounds()
        least, most = floor(bounds.epsilon_lower / interval), ceil(bounds.epsilon_upper / interval)
        deltas = step_deltas(loss, np.arange(least, most + 1) * interval)
        pmf = create_pmf_pessimistic_connect_dots_fixed_gap(interval, least, most, deltas)
        return LossMasses.of(pmf.to_dense_pmf())

    if mechanism.adjacency is Adjacency.SUBSTITUTE:
        return PrivacyLossDistribution(masses(AdjacencyType.REPLACE))
    removal = masses(AdjacencyType.REMOVE)
    if mechanism.sample_rate == 1:  # both directions are one
        return PrivacyLossDistribution(removal)
    return PrivacyLossDistribution(removal, masses(AdjacencyType.ADD))


def step_deltas(loss: GaussianPrivacyLoss, epsilons: Array) -> Array:
    """Delta of one step at each epsilon: `loss.get_delta_for_epsilon` by arithmetic on arrays.

    Args:
        loss: of sensitivity 1, under any of dp-accounting's three adjacencies.
        epsilons: of any sign, shape (points,).
    """
    q, variance = loss.sampling_prob, loss.standard_deviation**2
    if loss.adjacency_type == AdjacencyType.REPLACE:
        outputs = variance * _replaced(epsilons, q, variance)
    elif loss.adjacency_type == AdjacencyType.ADD:
        outputs = 0.5 + variance * _unsampled(-epsilons, q)
    else:
        outputs = -0.5 - variance * _unsampled(epsilons, q)
    # An output of minus infinity, below which nothing is, has delta 0. Infinity has all outputs
    # below it: of removal, at losses that no output has.
    deltas = loss.mu_upper_cdf(outputs) - np.exp(epsilons + loss.mu_lower_log_cdf(outputs))
    return np.asarray(np.clip(deltas, 0.0, 1.0))


def _unsampled(losses: Array, q: float) -> Array:
    """The Gaussian's own loss where, sampled at rate q, the loss of removal is this one.

    That is log(1 + (exp(loss) - 1) / q), and minus infinity for losses that are never so small.
    """
    if q == 1:
        return losses
    # Near 0, exp(loss) - 1 is small; near log(1 - q), it is q. Each has its formula.
    near = (losses > -log(2)) & (losses < 1)
    inside = np.expm1(np.where(near, losses, 0.5)) / q
    rest = (q - 1) * np.exp(np.minimum(-np.where(near, 1.0, losses), _LARGEST_EPSILON))
    with np.errstate(divide="ignore"):  # at losses of minus infinity
        small, large = (np.log1p(np.maximum(term, -1.0)) for term in (inside, rest))
    return np.where(near, small, losses - log(q) + large)


def _replaced(losses: Array, q: float, variance: float) -> Array:
    """Outputs over the variance where replacement has these losses, at sampling rate q.

    That is -asinh(sinh(loss / 2) exp(1 / (2 variance)) (1 - q) / q) - loss / 2.
    """
    if q == 1:
        return -losses / 2
    half = np.abs(losses) / 2
    at_least = np.maximum(half, 1e-300)  # whose logarithm is finite
    log_sinh = at_least + np.log(-np.expm1(-2 * at_least) / 2)
    power = log_sinh + 1 / (2 * variance) + log1p(-q) - log(q)
    # Beyond 20, asinh(exp(power)) is power + log(2) in double precision.
    inverse = np.where(power > 20, power + log(2), np.arcsinh(np.exp(np.minimum(power, 20.0))))
    return np.asarray(np.copysign(inverse + half, -losses))


def check_delta(question: Question, delta: float) -> None:
    """Refuses a delta that is too small against round-off."""
    floor = least_delta(question.mechanism.collapsed().num_steps)
    if delta < floor:
        raise question.refusal(
            f"rounding errors are too large for a delta of {delta:.2g}, which is below {floor:.2g}",
            instead="raise delta, or use method='closed_form' at sample_rate=1",
        )


def least_delta(num_steps: int) -> float:
    """The least delta that is not too small against the round-off of so many steps."""
    return 5 * round_off(num_steps)


def round_off(num_steps: int) -> float:
    """How much the arithmetic of so many steps adds to a delta, or takes from it, at most."""
    # Against the closed form we measured 2e-17 to 5e-17 per step at 500 to 100,000 steps. In
    # addition dp-accounting cuts a mass of 1e-15 off the tail of the composition.
    return 2e-15 + 1e-16 * num_steps


def _interval(mechanism: Mechanism, pessimistic: bool) -> float:
    """The grid interval: a small part of a step's loss, as far as time and memory allow."""
    num_steps = mechanism.num_steps
    scale = mechanism.adjacency.sensitivity * mechanism.sample_rate / mechanism.noise_multiplier
    interval = min(scale / 20, 0.02 / num_steps)
    if pessimistic:
        # `scale` is the loss of most steps. With little noise the others lose far more.
        coarse = min(_COARSE_INTERVAL / sqrt(num_steps), deviation(mechanism) / 1000)
        interval = max(scale / 100, coarse)
    return max(interval, least_interval(mechanism, pessimistic=pessimistic))


def least_interval(mechanism: Mechanism, *, pessimistic: bool) -> float:
    """The grid interval that time and memory allow."""
    num_steps, width = mechanism.num_steps, span(mechanism)
    # dp-accounting keeps T/400 + 68 spans of a step, since its Chernoff orders end at 20 / span.
    composed_width = width * min(num_steps, num_steps / 400 + 68)
    return max(width / _STEP_POINTS[pessimistic], composed_width / _COMPOSED_POINTS)


def span(mechanism: Mechanism) -> float:
    """Width of the range of one step's losses; noise beyond it has a mass of e^-50."""
    q, sigma = mechanism.sample_rate, mechanism.noise_multiplier
    x = 1 + 10 * sigma
    none = log1p(-q) if q < 1 else -inf
    ends = [np.logaddexp(none, log(q) + (2 * s * x - 1) / (2 * sigma**2)) for s in (1, -1)]
    return float(mechanism.adjacency.sensitivity * (ends[0] - ends[1]))


def deviation(mechanism: Mechanism) -> float:
    """Standard deviation of one step's likelihood ratio, for noise of at least 1/sqrt(50)."""
    inverse = min(mechanism.noise_multiplier**-2, 50.0)
    substitute = mechanism.adjacency is Adjacency.SUBSTITUTE
    return mechanism.sample_rate * sqrt(4 * sinh(inverse) if substitute else expm1(inverse))


def epsilon_bounds(question: Question, steps: list[int], lower: bool) -> list[EpsilonBounds]:
    """See `Accountant`."""
    check_delta(question.after(max(steps)), question.delta)
    return _bounds(question, steps, lower, lambda loss: loss.epsilon(question.delta))


def _bounds(
    question: Question, steps: list[int], lower: bool, epsilon: Callable[[ComposedLoss], float]
) -> list[EpsilonBounds]:
    uppers = [epsilon(loss) for loss in composed_losses(question, steps, pessimistic=True)]
    lowers = [0.0] * len(steps)
    if lower:
        lowers = [epsilon(loss) for loss in composed_losses(question, steps, pessimistic=False)]
    return [EpsilonBounds(low, up, up) for low, up in zip(lowers, uppers, strict=True)]


def bounds_by_group_privacy(
    question: Question, steps: list[int], lower: bool
) -> list[EpsilonBounds]:
    """Substitute epsilons by group privacy: a substitution is one removal and one addition.

    Theorem 4.1 of Pradhan et al.: eps_S = 2 eps_AR(d), where d solves (1 + exp(eps_AR(d))) d =
    delta. It is looser than accounting for the substitution itself, and shows by how much.
    """
    if question.mechanism.adjacency is not Adjacency.SUBSTITUTE:
        raise question.refusal(
            "group privacy bounds the substitute epsilon only", instead="use method='pld'"
        )
    removal = replace(question, mechanism=question.mechanism.under(Adjacency.ADD_REMOVE))
    try:
        return _bounds(removal, steps, lower, lambda loss: _doubled(loss, question.delta))
    except AccountingError as error:
        raise question.refusal(
            f"it rests on the add/remove epsilon, which cannot be accounted ({error.reason})",
            instead="use method='pld' or 'prv', which account the substitution itself",
        ) from error


def _doubled(loss: ComposedLoss, delta: float) -> float:
    """Solves the theorem's equation for the epsilon of one removal, and doubles it."""

    def excess(epsilon: float) -> float:
        return (1 + exp(epsilon)) * loss.delta(epsilon) - delta

    if excess(0.0) <= 0:
        return 0.0
    with arithmetic_guard(loss.question):
        # At the solution, delta is below half of the given one: about exp(-epsilon) of it.
        trial = delta / 2
        check_delta(loss.question, trial)
        while excess(high := loss.epsilon(trial)) > 0:
            trial /= 3
            check_delta(loss.question, trial)
        return 2 * float(brentq(excess, 0.0, high, xtol=1e-9))
