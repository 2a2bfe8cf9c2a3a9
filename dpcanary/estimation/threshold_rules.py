"""How the threshold of the reported bound is chosen, and at what level its error rates hold."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError, suggestion
from dpcanary.estimation.conversions import ConversionRule
from dpcanary.estimation.error_rates import ErrorCounts, count_errors
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
    """What every rule needs to know.

    Attributes:
        world0_scores: shape (n0,).
        world1_scores: shape (n1,).
        delta: the delta of (epsilon, delta)-DP.
        level: failure probability allowed to each world's error rate.
        conversion: ranks the thresholds.
        threshold: the threshold of rule `fixed`.
    """

    world0_scores: Scores
    world1_scores: Scores
    delta: float
    level: float
    conversion: ConversionRule
    threshold: float | None


def best_threshold(
    problem: Problem, counts: ErrorCounts, level0: float, level1: float
) -> BoundedThreshold:
    """The threshold of largest strength, each world's error rate bounded at its own level."""
    table0 = clopper_pearson_upper_table(num_trials=counts.num_world0, level=level0)
    table1 = clopper_pearson_upper_table(num_trials=counts.num_world1, level=level1)
    fnr_upper, fpr_upper = table0[counts.false_negatives], table1[counts.false_positives]
    strengths = problem.conversion.strength(fpr_upper, fnr_upper, problem.delta)
    best = int(np.argmax(strengths))
    return BoundedThreshold(
        threshold=float(counts.thresholds[best]),
        fpr_upper=float(fpr_upper[best]),
        fnr_upper=float(fnr_upper[best]),
        strength=float(strengths[best]),
    )


def _in_sample(problem: Problem) -> BoundedThreshold:
    counts = count_errors(world0_scores=problem.world0_scores, world1_scores=problem.world1_scores)
    return best_threshold(problem, counts, problem.level, problem.level)


def _simultaneous(problem: Problem) -> BoundedThreshold:
    counts = count_errors(world0_scores=problem.world0_scores, world1_scores=problem.world1_scores)
    level0 = simultaneous_local_level(num_scores=counts.num_world0, level=problem.level)
    level1 = simultaneous_local_level(num_scores=counts.num_world1, level=problem.level)
    return best_threshold(problem, counts, level0, level1)


def at_threshold(problem: Problem, threshold: float) -> BoundedThreshold:
    """One threshold, with bounds that hold if it was chosen without a look at these scores."""
    counts = count_errors(
        world0_scores=problem.world0_scores,
        world1_scores=problem.world1_scores,
        threshold=threshold,
    )
    return best_threshold(problem, counts, problem.level, problem.level)


def _fixed(problem: Problem) -> BoundedThreshold:
    given = problem.threshold
    if not isinstance(given, Real) or np.isnan(float(given)):
        raise InputError("threshold_rule 'fixed' needs a threshold, chosen beforehand")
    return at_threshold(problem, float(given))


def _split(problem: Problem) -> BoundedThreshold:
    choosing0, evaluating0 = _halves(problem.world0_scores, "world0_scores")
    choosing1, evaluating1 = _halves(problem.world1_scores, "world1_scores")
    choice = _in_sample(
        Problem(choosing0, choosing1, problem.delta, problem.level, problem.conversion, None)
    )
    rest = Problem(evaluating0, evaluating1, problem.delta, problem.level, problem.conversion, None)
    return at_threshold(rest, choice.threshold)


def _halves(scores: Scores, name: str) -> tuple[Scores, Scores]:
    """Two random halves, always the same for the same number of scores.

    A random cut serves scores in any order: a sorted array cut in the middle would put the low
    scores into one half and make the bound wrong.
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
        choose: chooses the threshold, and bounds its error rates.
        is_valid: whether the bound holds at the level of the problem.
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
        InputError: if there is no such rule, or the plugin's is none.
    """
    if name in RULES:
        return RULES[name]
    if name not in threshold_rule_names():
        raise InputError(
            f"unknown threshold rule {name!r}: {suggestion(name, threshold_rule_names())}"
        )
    return load_plugin(GROUP, name, Rule)
