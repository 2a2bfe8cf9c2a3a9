"""A lower bound on epsilon from the scores of one run's slots."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np
from numpy.typing import ArrayLike

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.argument_checks import checked_real
from dpcanary.errors import InputError
from dpcanary.estimation.conversion_families import family_of
from dpcanary.estimation.error_rates import checked_significance
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.families import Family
from dpcanary.estimation.one_run.slot_guesses import Guesses, guess_pairs, guess_slots
from dpcanary.estimation.rule_catalogue import (
    LowerBound,
    Rule,
    ThresholdRule,
    threshold_rule_named,
    threshold_rule_names,
)

# theta is searched on this grid, and then between the two points that decide, up to a precision.
_GRID = np.concatenate([np.linspace(0.0, 4.0, 33), np.linspace(4.25, 50.0, 184)])
_PRECISION = 1e-6


@dataclass(frozen=True, kw_only=True)
class OneRunEstimate(LowerBound):
    """A lower bound on epsilon from guesses, with everything that it rests on.

    It is under the adjacency of the two worlds of a slot.

    Attributes:
        guesses: the slots, the guesses, and how many were right.
        num_choices: the numbers of guesses that were fixed beforehand. The significance is divided
            among them, and the best bound counts.
        method: how right guesses became a bound.
    """

    guesses: Guesses
    num_choices: int
    method: str


def epsilon_of_guesses(
    guesses: Guesses,
    *,
    delta: float,
    significance: float = 0.05,
    method: ThresholdRule | str = ThresholdRule.MAHLOUJIFAR,
    conversion: Conversion | str | None = None,
    mechanism: Mechanism | None = None,
) -> OneRunEstimate:
    """The bound from a number of right guesses; for all options see `estimate_epsilon_one_run`.

    Args:
        guesses: the slots, the guesses, and how many were right.
        delta: in (0, 1).
        significance: probability with which the bound may exceed the truth.
        method: a rule of guesses; see `ThresholdRule`.
        conversion: among which trade-off curves the mechanism's is looked for.
        mechanism: only for conversion `subsampled_gaussian`.

    Raises:
        InputError: if an argument is out of range, or the method does not have this conversion.

    Example:
        >>> guesses = Guesses(num_slots=500, num_guesses=125, num_correct=100)
        >>> round(epsilon_of_guesses(guesses, delta=1e-5).epsilon_lower, 3)
        1.683
    """
    rule, delta = threshold_rule_named(str(method)), checked_real("delta", delta, most=1.0)
    if not rule.guesses:
        names = (name for name in threshold_rule_names() if threshold_rule_named(name).guesses)
        raise InputError(f"method {str(method)!r} is no rule of guesses: known: {', '.join(names)}")
    level = checked_significance(significance)
    chosen = Conversion(conversion or rule.conversion(Conversion.GDP))
    family = family_of(chosen, delta=delta, mechanism=mechanism)
    theta = theta_of_guesses(guesses, rule, family, significance=level)
    return OneRunEstimate(
        epsilon_lower=family.epsilon(theta, delta),
        mu_lower=theta if family.is_mu else nan,
        guesses=guesses,
        num_choices=1,
        delta=delta,
        significance=level,
        method=str(method),
        conversion=chosen,
        proof=rule.proof,
        assumption=f"{family.assumption}; {rule.assumption()}",
    )


def theta_of_guesses(guesses: Guesses, rule: Rule, family: Family, *, significance: float) -> float:
    """The largest theta such that it and all smaller ones are refuted, or 0 if 0 is not."""
    if not family.is_symmetric:
        raise InputError(
            f"the curves of {family.name} differ between the worlds: guesses of both worlds need"
            " 'gdp' or 'direct'"
        )
    refutes: Callable[[float], bool] = rule.function(
        guesses, family=family, significance=significance
    )
    return largest_refuted(refutes, largest=family.largest)


def largest_refuted(refutes: Callable[[float], bool], *, largest: float) -> float:
    """The largest theta up to `largest` such that it and all smaller ones are refuted, or 0.

    A grid is searched from below: the methods' p-values need not rise with theta everywhere.
    """
    below = 0.0
    for above in _GRID.tolist():
        if above >= largest or not refutes(above):
            break
        below = above
    else:
        return below
    high = min(above, largest)
    while high - below > _PRECISION and below < high:
        middle = (below + high) / 2
        below, high = (middle, high) if refutes(middle) else (below, middle)
    return below


Numbers = int | Sequence[int]


def estimate_epsilon_one_run(
    *,
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    delta: float,
    significance: float = 0.05,
    method: ThresholdRule | str = ThresholdRule.MAHLOUJIFAR,
    num_guesses: Numbers | None = None,
    positive_guesses: Numbers | None = None,
    negative_guesses: Numbers | None = None,
    conversion: Conversion | str | None = None,
    mechanism: Mechanism | None = None,
) -> OneRunEstimate:
    """Bounds epsilon from below by how often the worlds of a run's slots are guessed right.

    There are two games. With `num_guesses`, slots are *pairs* of records of which a fair coin put
    one into the training data: `world0_scores[i]` and `world1_scores[i]` are the scores of pair i,
    of the record that is in and of the one that is out. The pairs whose scores differ most are
    guessed. This audits the substitution of one record of a pair by the other.

    With `positive_guesses` and `negative_guesses`, each slot has one score and a fair coin of its
    own: the highest scores are guessed to be in, or in world 0, and the lowest to be out, or in
    world 1. This audits the adjacency of these two worlds.

    The numbers of guesses must be fixed before the scores are seen. Several numbers may be given:
    then each has its share of the significance, and the best bound counts. Scores of several runs,
    one after the other, are the scores of more slots.

    Args:
        world0_scores: shape (n,), higher means in. Scores of slots, or of records of pairs, that
            are in.
        world1_scores: the same for slots, or records of pairs, that are out.
        delta: in (0, 1).
        significance: probability with which the bound may exceed the truth, in [2e-9, 0.5].
        method: a rule of guesses; see `ThresholdRule`.
        num_guesses: pairs to guess.
        positive_guesses: slots guessed to be in.
        negative_guesses: slots guessed to be out; as many numbers as positive_guesses.
        conversion: `gdp` (the default), `direct` or `subsampled_gaussian`, as in
            `estimate_epsilon`. Method `steinke` has `direct` alone.
        mechanism: only for `subsampled_gaussian`; see `estimate_epsilon`.

    Returns:
        The bound. Guesses that are right half of the time give 0.

    Raises:
        InputError: if an argument is out of range, or a score is NaN; the message names it.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> estimate = estimate_epsilon_one_run(
        ...     world0_scores=rng.normal(2.0, 1.0, 500),
        ...     world1_scores=rng.normal(0.0, 1.0, 500),
        ...     delta=1e-5,
        ...     positive_guesses=125,
        ...     negative_guesses=125,
        ... )
        >>> 5.0 < estimate.epsilon_lower < 8.0  # the truth is 9.997
        True
    """
    level = checked_significance(significance)
    if num_guesses is not None:
        if positive_guesses is not None or negative_guesses is not None:
            raise InputError(
                "num_guesses is for pairs, positive_guesses and negative_guesses are for slots:"
                " give one or the other"
            )
        rounds = [
            guess_pairs(world0_scores, world1_scores, num_guesses=number)
            for number in _numbers("num_guesses", num_guesses)
        ]
    else:
        rounds = _rounds_of_slots(world0_scores, world1_scores, positive_guesses, negative_guesses)
    bounds = [
        epsilon_of_guesses(
            guesses,
            delta=delta,
            significance=level / len(rounds),
            method=method,
            conversion=conversion,
            mechanism=mechanism,
        )
        for guesses in rounds
    ]
    best = max(bounds, key=lambda bound: bound.epsilon_lower)
    return replace(best, num_choices=len(rounds), significance=level)


def _rounds_of_slots(
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    positive_guesses: Numbers | None,
    negative_guesses: Numbers | None,
) -> list[Guesses]:
    if positive_guesses is None or negative_guesses is None:
        raise InputError("give num_guesses, or both positive_guesses and negative_guesses")
    positive = _numbers("positive_guesses", positive_guesses)
    negative = _numbers("negative_guesses", negative_guesses)
    if len(positive) != len(negative):
        raise InputError(
            f"there are {len(positive)} numbers of positive_guesses and {len(negative)} of"
            " negative_guesses; they belong together"
        )
    return [
        guess_slots(
            world0_scores, world1_scores, positive_guesses=positives, negative_guesses=other
        )
        for positives, other in zip(positive, negative, strict=True)
    ]


def _numbers(name: str, counts: Numbers) -> list[int]:
    numbers: list[int] = np.atleast_1d(counts).tolist()
    if not numbers:
        raise InputError(f"{name} is empty; give at least one number")
    return numbers
