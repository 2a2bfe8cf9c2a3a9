"""A lower bound on epsilon from the scores of two worlds."""

from dataclasses import dataclass

from numpy.typing import ArrayLike

from dpcanary.checks import checked_real
from dpcanary.errors import InputError
from dpcanary.estimation.conversions import CONVERSION_RULES
from dpcanary.estimation.error_rates import checked_scores
from dpcanary.estimation.options import Conversion, ThresholdRule
from dpcanary.estimation.threshold_rules import Problem, threshold_rule_named

# The simultaneous level can be computed down to half of this.
_LEAST_SIGNIFICANCE = 2e-9
# A bound that fails more often than it holds is no bound.
_LARGEST_SIGNIFICANCE = 0.5
_INVALID = "NOT a valid bound (the threshold was chosen on the scores it is judged by); "


@dataclass(frozen=True)
class EpsilonEstimate:
    """A lower bound on epsilon, with everything that it rests on.

    Attributes:
        epsilon_lower: the bound, at least 0.
        mu_lower: lower bound on mu of mu-GDP, at least 0; NaN for conversion `direct`.
        fpr_upper: upper bound on the false positive rate at the threshold.
        fnr_upper: upper bound on the false negative rate at the threshold.
        threshold: scores at or above it count as world 0.
        delta: the delta of (epsilon, delta).
        significance: probability with which the bound may exceed the truth.
        conversion: how the error rates became an epsilon.
        threshold_rule: how the threshold was chosen.
        is_valid: whether the bound holds at its significance.
        assumption: in words, what must hold so that the bound is valid.
    """

    epsilon_lower: float
    mu_lower: float
    fpr_upper: float
    fnr_upper: float
    threshold: float
    delta: float
    significance: float
    conversion: Conversion
    threshold_rule: str
    is_valid: bool
    assumption: str


def estimate_epsilon(
    *,
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    delta: float,
    significance: float = 0.05,
    conversion: Conversion | str = Conversion.GDP,
    threshold_rule: ThresholdRule | str = ThresholdRule.SIMULTANEOUS,
    threshold: float | None = None,
) -> EpsilonEstimate:
    """Bounds epsilon from below by how well a threshold on the scores tells the worlds apart.

    Each world's error rate gets a Clopper-Pearson upper bound at half of the significance. By a
    union bound, both bounds hold except with probability at most the significance.

    Args:
        world0_scores: shape (n0,); one score per run of world 0. Higher means world 0 is likelier.
        world1_scores: shape (n1,); one score per run of world 1.
        delta: in (0, 1).
        significance: probability with which the bound may exceed the truth, in [2e-9, 0.5]. Rule
            `simultaneous` has a table of its local levels for .05 and up to 250,000 scores per
            world. Other levels are computed once (seconds at 25,000 scores, minutes at a million).
        conversion: `gdp` or `direct`; see `Conversion`.
        threshold_rule: one of `ThresholdRule`, or the name of a plugin's rule.
        threshold: only for rule `fixed`.

    Returns:
        The bound. Without signal it is exactly 0.

    Raises:
        InputError: if an argument is out of range or a score is NaN; the message names it.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> estimate = estimate_epsilon(
        ...     world0_scores=rng.normal(2.0, 1.0, 1_000),
        ...     world1_scores=rng.normal(0.0, 1.0, 1_000),
        ...     delta=1e-5,
        ... )
        >>> 7.5 < estimate.epsilon_lower < 9.99  # the truth is mu = 2, epsilon = 9.99
        True
    """
    name, conversion = str(threshold_rule), Conversion(conversion)
    rule, convert = threshold_rule_named(name), CONVERSION_RULES[conversion]
    delta = checked_real("delta", delta, most=1.0)
    significance = checked_real(
        "significance", significance, most=_LARGEST_SIGNIFICANCE, most_included=True
    )
    if significance < _LEAST_SIGNIFICANCE:
        raise InputError(
            f"significance is {significance}; it must be at least {_LEAST_SIGNIFICANCE:g}"
        )
    if threshold is not None and name != ThresholdRule.FIXED:
        raise InputError(f"a threshold goes with threshold_rule 'fixed', not with {name!r}")
    problem = Problem(
        world0_scores=checked_scores("world0_scores", world0_scores),
        world1_scores=checked_scores("world1_scores", world1_scores),
        delta=delta,
        level=significance / 2,
        conversion=convert,
        threshold=threshold,
    )
    chosen = rule.choose(problem)
    strength = max(chosen.strength, 0.0)
    return EpsilonEstimate(
        epsilon_lower=convert.epsilon(strength, delta),
        mu_lower=convert.mu(strength),
        fpr_upper=chosen.fpr_upper,
        fnr_upper=chosen.fnr_upper,
        threshold=chosen.threshold,
        delta=delta,
        significance=significance,
        conversion=conversion,
        threshold_rule=name,
        is_valid=rule.is_valid,
        assumption=("" if rule.is_valid else _INVALID) + convert.assumption,
    )
