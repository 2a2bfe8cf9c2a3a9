"""How scores become a bound: by a threshold, or by a statistic with a known null distribution."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError, suggestion
from dpcanary.estimation.calibration.statistics import observed_statistics, scan_terms
from dpcanary.estimation.calibration.store import calibrated_bound
from dpcanary.estimation.error_rates import count_errors
from dpcanary.estimation.families import Family
from dpcanary.estimation.intervals import clopper_pearson_upper_table
from dpcanary.estimation.local_level import simultaneous_local_level
from dpcanary.estimation.one_run.bound import assumption_of, theta_of_guesses
from dpcanary.estimation.one_run.guesses import guess_slots
from dpcanary.estimation.one_run.options import OneRunMethod
from dpcanary.estimation.options import CALIBRATED_RULES, GUESSED_SHARE, ThresholdRule
from dpcanary.estimation.rule_names import GROUP, threshold_rule_names
from dpcanary.plugins import load_plugin

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class BoundedThreshold:
    """What a rule proves, with the threshold that shows it where there is one.

    Attributes:
        threshold: scores at or above it count as world 0; NaN if the rule has none.
        fpr_upper: upper bound on the false positive rate there; NaN without a threshold.
        fnr_upper: upper bound on the false negative rate there; NaN without a threshold.
        strength: lower bound on the theta of the family; below 0 it proves nothing.
    """

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
        significance: probability with which the bound may exceed the truth.
        family: the trade-off curves among which the mechanism's is looked for.
        threshold: for rule `fixed`.
        looks: numbers of scores of world 0 and world 1 at all looks that hold jointly, if there
            are several.
        look: the index of this one.
        guessed_share: the share of all slots that rules of guesses guess, half of it in each world.
    """

    world0_scores: Scores
    world1_scores: Scores
    significance: float
    family: Family
    threshold: float | None = None
    looks: tuple[tuple[int, int], ...] = ()
    look: int = 0
    guessed_share: float = GUESSED_SHARE

    @property
    def level(self) -> float:
        """Failure probability allowed to each world's error rate, by a union bound."""
        return self.significance / 2


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
    strengths = problem.family.strength(fpr_upper, fnr_upper)
    best = int(np.argmax(strengths))
    found = (counts.thresholds, fpr_upper, fnr_upper, strengths)
    return BoundedThreshold(*(float(values[best]) for values in found))


def _calibrated(rule: ThresholdRule) -> Callable[[Problem], BoundedThreshold]:
    """A rule whose statistic is calibrated; its threshold, if any, is that of rule `in_sample`."""

    def choose(problem: Problem) -> BoundedThreshold:
        sizes = len(problem.world0_scores), len(problem.world1_scores)
        terms = scan_terms(family=problem.family, sizes=sizes, significance=problem.significance)
        bound = calibrated_bound(
            family=problem.family,
            looks=problem.looks or (sizes,),
            look=problem.look,
            significance=problem.significance,
            rule=rule,
            statistics=observed_statistics(problem.world0_scores, problem.world1_scores, terms),
        )
        if rule is ThresholdRule.RANK_SUM:
            return BoundedThreshold(math.nan, math.nan, math.nan, bound)
        return replace(_in_sample(problem), strength=bound)

    return choose


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


def _guessing(method: OneRunMethod) -> Callable[[Problem], BoundedThreshold]:
    """A rule that guesses the worlds of the slots with the highest and the lowest scores."""

    def choose(problem: Problem) -> BoundedThreshold:
        num_slots = len(problem.world0_scores) + len(problem.world1_scores)
        each = max(1, round(problem.guessed_share * num_slots / 2))
        guesses = guess_slots(
            problem.world0_scores,
            problem.world1_scores,
            positive_guesses=each,
            negative_guesses=min(each, num_slots - each),
        )
        theta = theta_of_guesses(guesses, method, problem.family, significance=problem.significance)
        return BoundedThreshold(math.nan, math.nan, math.nan, theta)

    return choose


@dataclass(frozen=True)
class Rule:
    """A threshold rule.

    Attributes:
        choose: chooses the threshold and bounds its error rates.
        is_valid: whether the bounds hold at the problem's significance.
        has_looks: whether bounds at several looks can hold jointly.
        assumption: what must hold of the slots, for rules of guesses. Other rules need independent
            scores.
    """

    choose: Callable[[Problem], BoundedThreshold]
    is_valid: bool
    has_looks: bool = False
    assumption: str = ""


RULES: dict[str, Rule] = {
    **{rule: Rule(_calibrated(rule), is_valid=True, has_looks=True) for rule in CALIBRATED_RULES},
    ThresholdRule.SIMULTANEOUS: Rule(_simultaneous, is_valid=True),
    ThresholdRule.SPLIT: Rule(_split, is_valid=True),
    ThresholdRule.FIXED: Rule(_fixed, is_valid=True),
    ThresholdRule.IN_SAMPLE: Rule(_in_sample, is_valid=False),
    **{
        method: Rule(_guessing(method), is_valid=True, assumption=assumption_of(method))
        for method in OneRunMethod
    },
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
