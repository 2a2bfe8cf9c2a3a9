"""How the threshold of the reported bound is chosen, and the level at which its bounds hold."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError, suggestion
from dpcanary.estimation.conversions import ConversionRule
from dpcanary.estimation.error_rates import count_errors
from dpcanary.estimation.intervals import clopper_pearson_upper_table
from dpcanary.estimation.local_level import simultaneous_local_level
from dpcanary.estimation.options import ThresholdRule
from dpcanary.estimation.rule_names import GROUP, threshold_rule_names
from dpcanary.plugins import load_plugin

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class BoundedThreshold:
    """A threshold with upper bounds on its error rates and the strength of what they prove."""

    threshold: float
    fpr_upper: float
    fnr_upper: float
    strength: float


@dataclass(frozen=True)
class Problem:
    """The scores of two worlds, and how a bound from them is judged.

    Attributes:
        world0_scores: shape (n0,).
        world1_scores: shape (n1,).
        delta: the delta of (epsilon, delta)-DP.
        level: failure probability allowed to each world's error rate.
        conversion: ranks the thresholds.
        threshold: for rule `fixed`.
    """

    world0_scores: Scores
    world1_scores: Scores
    delta: float
    level: float
    conversion: ConversionRule
    threshold: float | None


def at_threshold(problem: Problem, threshold: float) -> BoundedThreshold:
    """One threshold, with bounds that hold if it was chosen without looking at these scores."""
    return _best(problem, problem.level, problem.level, threshold)


def _best(
    problem: Problem, level0: float, level1: float, threshold: float | None = None
) -> BoundedThreshold:
    """The threshold of largest strength; each world's error rate is bounded at its own level."""
    counts = count_errors(
        world0_scores=problem.world0_scores,
        world1_scores=problem.world1_scores,
        threshold=threshold,
    )
    table0 = clopper_pearson_upper_table(num_trials=counts.num_world0, level=level0)
    table1 = clopper_pearson_upper_table(num_trials=counts.num_world1, level=level1)
    fnr_upper, fpr_upper = table0[counts.false_negatives], table1[counts.false_positives]
    strengths = problem.conversion.strength(fpr_upper, fnr_upper, problem.delta)
    best = int(np.argmax(strengths))
    found = (counts.thresholds, fpr_upper, fnr_upper, strengths)
    return BoundedThreshold(*(float(values[best]) for values in found))


def _in_sample(problem: Problem) -> BoundedThreshold:
    return _best(problem, problem.level, problem.level)


def _simultaneous(problem: Problem) -> BoundedThreshold:
    level0, level1 = (
        simultaneous_local_level(num_scores=len(scores), level=problem.level)
        for scores in (problem.world0_scores, problem.world1_scores)
    )
    return _best(problem, level0, level1)


def _fixed(problem: Problem) -> BoundedThreshold:
    given = problem.threshold
    if not isinstance(given, Real) or np.isnan(float(given)):
        raise InputError("threshold_rule 'fixed' needs a threshold, chosen beforehand")
    return at_threshold(problem, float(given))


def _split(problem: Problem) -> BoundedThreshold:
    choosing0, evaluating0 = _halves(problem.world0_scores, "world0_scores")
    choosing1, evaluating1 = _halves(problem.world1_scores, "world1_scores")
    choice = _in_sample(replace(problem, world0_scores=choosing0, world1_scores=choosing1))
    rest = replace(problem, world0_scores=evaluating0, world1_scores=evaluating1)
    return at_threshold(rest, choice.threshold)


def _halves(scores: Scores, name: str) -> tuple[Scores, Scores]:
    """Two random halves; the same number of scores is always cut in the same way.

    A random cut suits scores in any order. A sorted array cut in the middle would have all low
    scores in one half, and the bound would be wrong.
    """
    if len(scores) < 2:
        raise InputError(f"threshold_rule 'split' needs at least 2 {name}")
    order = np.random.default_rng(len(scores)).permutation(len(scores))
    middle = len(scores) // 2
    return scores[order[:middle]], scores[order[middle:]]


@dataclass(frozen=True)
class Rule:
    """A threshold rule.

    Attributes:
        choose: chooses the threshold and bounds its error rates.
        is_valid: whether the bounds hold at the problem's level.
    """

    choose: Callable[[Problem], BoundedThreshold]
    is_valid: bool


RULES: dict[str, Rule] = {
    ThresholdRule.SIMULTANEOUS: Rule(_simultaneous, is_valid=True),
    ThresholdRule.SPLIT: Rule(_split, is_valid=True),
    ThresholdRule.FIXED: Rule(_fixed, is_valid=True),
    ThresholdRule.IN_SAMPLE: Rule(_in_sample, is_valid=False),
}


def threshold_rule_named(name: str) -> Rule:
    """The rule of this name, of this package or of a plugin.

    A plugin registers a `Rule` as an entry point in the group `dpcanary.threshold_rules`.

    Raises:
        InputError: if there is no such rule, or the plugin's object is not a `Rule`.
    """
    if name in RULES:
        return RULES[name]
    known = threshold_rule_names()
    if name not in known:
        raise InputError(f"unknown threshold rule {name!r}: {suggestion(name, known)}")
    return load_plugin(GROUP, name, Rule)
