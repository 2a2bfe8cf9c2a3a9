"""The largest parameter of a family of curves that guesses refute."""

from collections.abc import Callable
from dataclasses import dataclass
from math import nan

import numpy as np

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.checks import checked_real
from dpcanary.errors import InputError
from dpcanary.estimation.conversions import family_of
from dpcanary.estimation.families import Family
from dpcanary.estimation.one_run.guesses import Guesses
from dpcanary.estimation.one_run.mahloujifar import is_refuted
from dpcanary.estimation.one_run.options import OneRunMethod
from dpcanary.estimation.one_run.order_statistic import order_statistic_p_value
from dpcanary.estimation.one_run.steinke import steinke_p_value
from dpcanary.estimation.options import Conversion
from dpcanary.estimation.significance import checked_significance

# theta is searched on this grid, and then between the two points that decide, up to a precision.
_GRID = np.concatenate([np.linspace(0.0, 4.0, 33), np.linspace(4.25, 50.0, 184)])
_PRECISION = 1e-6

_COINS = (
    "the world of each slot was a fair coin of its own, and the numbers of guesses were fixed"
    " before the scores were seen"
)
_DEPENDENCE = {
    OneRunMethod.STEINKE: "slots may depend on one another in any way",
    OneRunMethod.MAHLOUJIFAR: "slots may depend on one another in any way",
    OneRunMethod.ORDER_STATISTIC: "what is seen of one slot says nothing about the others",
}


@dataclass(frozen=True)
class OneRunEstimate:
    """A lower bound on epsilon, with everything that it rests on.

    Attributes:
        epsilon_lower: the bound, at least 0, under the adjacency of the two worlds of a slot.
        mu_lower: lower bound on mu of mu-GDP; NaN unless the curves are Gaussian.
        guesses: the slots, the guesses, and how many were right.
        num_choices: the numbers of guesses that were fixed beforehand. The significance is divided
            among them, and the best bound counts.
        delta: the delta of (epsilon, delta).
        significance: probability with which the bound may exceed the truth.
        method: how right guesses became a bound.
        family: among which trade-off curves the mechanism's was looked for.
        assumption: in words, what must hold so that the bound is valid.
    """

    epsilon_lower: float
    mu_lower: float
    guesses: Guesses
    num_choices: int
    delta: float
    significance: float
    method: OneRunMethod
    family: Conversion
    assumption: str


def epsilon_of_guesses(
    guesses: Guesses,
    *,
    delta: float,
    significance: float = 0.05,
    method: OneRunMethod | str = OneRunMethod.MAHLOUJIFAR,
    family: Conversion | str | None = None,
    mechanism: Mechanism | None = None,
) -> OneRunEstimate:
    """The bound from a number of right guesses; see `estimate_epsilon_one_run`.

    Args:
        guesses: the slots, the guesses, and how many were right.
        delta: in (0, 1).
        significance: probability with which the bound may exceed the truth.
        method: see `OneRunMethod`.
        family: see `estimate_epsilon_one_run`.
        mechanism: only for family `subsampled_gaussian`.

    Raises:
        InputError: if an argument is out of range, or the method does not have this family.

    Example:
        >>> guesses = Guesses(num_slots=500, num_guesses=125, num_correct=100)
        >>> round(epsilon_of_guesses(guesses, delta=1e-5).epsilon_lower, 3)
        1.683
    """
    method, delta = OneRunMethod(method), checked_real("delta", delta, most=1.0)
    level = checked_significance(significance)
    conversion = _conversion(method, family)
    curves = family_of(conversion, delta=delta, mechanism=mechanism)
    theta = theta_of_guesses(guesses, method, curves, significance=level)
    return OneRunEstimate(
        epsilon_lower=curves.epsilon(theta, delta),
        mu_lower=theta if curves.is_mu else nan,
        guesses=guesses,
        num_choices=1,
        delta=delta,
        significance=level,
        method=method,
        family=conversion,
        assumption=f"{curves.assumption}; {assumption_of(method)}",
    )


def assumption_of(method: OneRunMethod) -> str:
    """What must hold of the slots, in words."""
    return f"{_COINS}; {_DEPENDENCE[method]}"


def theta_of_guesses(
    guesses: Guesses, method: OneRunMethod, family: Family, *, significance: float
) -> float:
    """The largest theta such that it and all smaller ones are refuted, or 0 if 0 is not.

    Args:
        guesses: the slots, the guesses, and how many were right.
        method: how the probability of as many right guesses is bounded.
        family: the curves.
        significance: the largest probability that refutes a theta.

    Raises:
        InputError: if the method has no bound for this family.
    """
    if not family.is_symmetric:
        raise InputError(
            f"the curves of {family.name} differ between the worlds: guesses of both worlds need"
            " 'gdp' or 'direct'"
        )
    return _least_unrefuted(_refutes(guesses, method, family, significance), family.largest)


def _conversion(method: OneRunMethod, family: Conversion | str | None) -> Conversion:
    default = Conversion.DIRECT if method is OneRunMethod.STEINKE else Conversion.GDP
    return Conversion(family or default)


def _refutes(
    guesses: Guesses, method: OneRunMethod, family: Family, level: float
) -> Callable[[float], bool]:
    """Whether guesses are right too often for a theta."""
    match method:
        case OneRunMethod.STEINKE:
            if family.delta is None:
                raise InputError(f"method 'steinke' has no bound for {family.name}, only 'direct'")
            p_value = steinke_p_value(guesses, delta=family.delta)
            return lambda theta: p_value(theta) <= level
        case OneRunMethod.MAHLOUJIFAR:
            return lambda theta: is_refuted(guesses, family=family, theta=theta, significance=level)
        case OneRunMethod.ORDER_STATISTIC:
            return lambda theta: (
                order_statistic_p_value(guesses, family=family, theta=theta) <= level
            )


def _least_unrefuted(refutes: Callable[[float], bool], largest: float) -> float:
    """The least theta that is not refuted, up to the precision; 0 if that is 0.

    The grid is searched from below: the methods' p-values need not rise with theta everywhere.
    """
    below = 0.0
    for above in _GRID:
        if above >= largest or not refutes(float(above)):
            break
        below = float(above)
    else:
        return below
    high = min(float(above), largest)
    while high - below > _PRECISION and below < high:
        middle = (below + high) / 2
        below, high = (middle, high) if refutes(middle) else (below, middle)
    return below
