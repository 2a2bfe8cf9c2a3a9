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
from dpcanary.estimation.options import Conversion
from dpcanary.estimation.rules import (
    Rule,
    ThresholdRule,
    threshold_rule_named,
    threshold_rule_names,
)
from dpcanary.estimation.significance import checked_significance

# theta is searched on this grid, and then between the two points that decide, up to a precision.
_GRID = np.concatenate([np.linspace(0.0, 4.0, 33), np.linspace(4.25, 50.0, 184)])
_PRECISION = 1e-6


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
    method: str
    family: Conversion
    assumption: str


def epsilon_of_guesses(
    guesses: Guesses,
    *,
    delta: float,
    significance: float = 0.05,
    method: ThresholdRule | str = ThresholdRule.MAHLOUJIFAR,
    family: Conversion | str | None = None,
    mechanism: Mechanism | None = None,
) -> OneRunEstimate:
    """The bound from a number of right guesses; see `estimate_epsilon_one_run`.

    Args:
        guesses: the slots, the guesses, and how many were right.
        delta: in (0, 1).
        significance: probability with which the bound may exceed the truth.
        method: a rule of guesses; see `ThresholdRule`.
        family: see `estimate_epsilon_one_run`.
        mechanism: only for family `subsampled_gaussian`.

    Raises:
        InputError: if an argument is out of range, or the method does not have this family.

    Example:
        >>> guesses = Guesses(num_slots=500, num_guesses=125, num_correct=100)
        >>> round(epsilon_of_guesses(guesses, delta=1e-5).epsilon_lower, 3)
        1.683
    """
    rule, delta = threshold_rule_named(str(method)), checked_real("delta", delta, most=1.0)
    if not rule.guesses:
        raise InputError(f"method {str(method)!r} is no rule of guesses: {_known_methods()}")
    level = checked_significance(significance)
    conversion = Conversion(family or rule.conversion(Conversion.GDP))
    curves = family_of(conversion, delta=delta, mechanism=mechanism)
    theta = theta_of_guesses(guesses, rule, curves, significance=level)
    return OneRunEstimate(
        epsilon_lower=curves.epsilon(theta, delta),
        mu_lower=theta if curves.is_mu else nan,
        guesses=guesses,
        num_choices=1,
        delta=delta,
        significance=level,
        method=str(method),
        family=conversion,
        assumption=f"{curves.assumption}; {rule.assumption}",
    )


def _known_methods() -> str:
    rules = threshold_rule_names()
    return f"known: {', '.join(name for name in rules if threshold_rule_named(name).guesses)}"


def theta_of_guesses(guesses: Guesses, rule: Rule, family: Family, *, significance: float) -> float:
    """The largest theta such that it and all smaller ones are refuted, or 0 if 0 is not.

    Args:
        guesses: the slots, the guesses, and how many were right.
        rule: of guesses.
        family: the curves.
        significance: the largest probability that refutes a theta.

    Raises:
        InputError: if the rule has no bound for this family.
    """
    if not family.is_symmetric:
        raise InputError(
            f"the curves of {family.name} differ between the worlds: guesses of both worlds need"
            " 'gdp' or 'direct'"
        )
    refutes: Callable[[float], bool] = rule.function(
        guesses, family=family, significance=significance
    )
    return _least_unrefuted(refutes, family.largest)


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
