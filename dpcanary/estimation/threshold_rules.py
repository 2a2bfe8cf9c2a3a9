"""How scores become a bound: by a threshold, or by a statistic with a known null distribution."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.estimation.anytime import EProcess, check_order, lines_of_family, paired
from dpcanary.estimation.error_rates import (
    clopper_pearson_upper_table,
    count_errors,
    next_distinct,
    simultaneous_local_level,
)
from dpcanary.estimation.estimation_settings import GUESSED_SHARE
from dpcanary.estimation.families import Family
from dpcanary.estimation.null_distributions.null_tables import calibrated_bound
from dpcanary.estimation.null_distributions.statistics import observed_statistics, scan_terms
from dpcanary.estimation.one_run.one_run_bound import theta_of_guesses
from dpcanary.estimation.one_run.slot_guesses import guess_slots
from dpcanary.estimation.rule_catalogue import Rule, ThresholdRule

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class BoundedThreshold:
    """What a rule shows, with the threshold that shows it where there is one.

    Attributes:
        threshold: scores at or above it count as world 0; NaN if the rule has none.
        fpr_upper: upper bound on the false positive rate there; NaN without a threshold.
        fnr_upper: upper bound on the false negative rate there; NaN without a threshold.
        strength: lower bound on the theta of the family; below 0 it shows nothing.
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
    problem: Problem,
    level0: float,
    level1: float,
    threshold: float | None = None,
    *,
    all_at_once: bool = False,
) -> BoundedThreshold:
    """The threshold of largest strength; each world's error rate is bounded at its own level.

    Bounds that hold at all thresholds at once are those of `distinct_counts`.
    """
    scores0, scores1 = problem.world0_scores, problem.world1_scores
    thresholds, false_positives, false_negatives = count_errors(
        world0_scores=scores0, world1_scores=scores1, threshold=threshold
    )
    table0 = clopper_pearson_upper_table(num_trials=len(scores0), level=level0)
    table1 = clopper_pearson_upper_table(num_trials=len(scores1), level=level1)
    if all_at_once:
        false_negatives = next_distinct(false_negatives, len(scores0))
        false_positives = next_distinct(false_positives, len(scores1))
    fnr_upper, fpr_upper = table0[false_negatives], table1[false_positives]
    strengths = problem.family.strength(fpr_upper, fnr_upper)
    best = int(np.argmax(strengths))
    columns = (thresholds, fpr_upper, fnr_upper, strengths)
    return BoundedThreshold(*(float(column[best]) for column in columns))


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
        return replace(in_sample(problem), strength=bound)

    return choose


combined = _calibrated(ThresholdRule.COMBINED)
calibrated = _calibrated(ThresholdRule.CALIBRATED)
rank_sum = _calibrated(ThresholdRule.RANK_SUM)


def in_sample(problem: Problem) -> BoundedThreshold:
    """The best of all thresholds, each with bounds that hold at that one alone."""
    return _best(problem, problem.level, problem.level)


def simultaneous(problem: Problem) -> BoundedThreshold:
    """The best of all thresholds, with bounds that hold at all of them at once."""
    level0, level1 = (
        simultaneous_local_level(num_scores=len(scores), level=problem.level)
        for scores in (problem.world0_scores, problem.world1_scores)
    )
    return _best(problem, level0, level1, all_at_once=True)


def fixed(problem: Problem) -> BoundedThreshold:
    """The threshold of the problem, or an `InputError` if it has none."""
    threshold = problem.threshold
    if not isinstance(threshold, Real) or np.isnan(float(threshold)):
        raise InputError("threshold_rule 'fixed' needs a threshold, chosen beforehand")
    return at_threshold(problem, float(threshold))


def split(problem: Problem) -> BoundedThreshold:
    """The best threshold of one half of the scores, with bounds from the other half.

    Raises:
        InputError: if the scores are sorted.
    """
    scores0, scores1 = problem.world0_scores, problem.world1_scores
    check_order(rule="split", world0_scores=scores0, world1_scores=scores1)
    choosing0, evaluating0 = _halves(scores0, "world0_scores")
    choosing1, evaluating1 = _halves(scores1, "world1_scores")
    choice = in_sample(replace(problem, world0_scores=choosing0, world1_scores=choosing1))
    rest = replace(problem, world0_scores=evaluating0, world1_scores=evaluating1)
    return at_threshold(rest, choice.threshold)


def _halves(scores: Scores, name: str) -> tuple[Scores, Scores]:
    """Two halves; the same number of scores is always cut in the same way.

    So their order must not depend on them: of sorted scores, always the same ranks would be in the
    half that gives the bound. A permutation suits scores that alternate between two set-ups.
    """
    if len(scores) < 2:
        raise InputError(f"threshold_rule 'split' needs at least 2 {name}")
    order = np.random.default_rng(len(scores)).permutation(len(scores))
    middle = len(scores) // 2
    return scores[order[:middle]], scores[order[middle:]]


def anytime(problem: Problem) -> BoundedThreshold:
    """The largest bound of all numbers of pairs up to these; they have no common threshold.

    The k-th scores of both worlds are a pair. Scores without a partner are not used.
    """
    process = EProcess(lines_of_family(problem.family), significance=problem.significance)
    process.add(*paired(problem.world0_scores, problem.world1_scores))
    return BoundedThreshold(math.nan, math.nan, math.nan, process.bound)


def _guess(problem: Problem, rule: Rule) -> BoundedThreshold:
    """Guesses the worlds of the slots with the highest and the lowest scores."""
    num_slots = len(problem.world0_scores) + len(problem.world1_scores)
    each = max(1, round(problem.guessed_share * num_slots / 2))
    guesses = guess_slots(
        problem.world0_scores,
        problem.world1_scores,
        positive_guesses=each,
        negative_guesses=min(each, num_slots - each),
    )
    theta = theta_of_guesses(guesses, rule, problem.family, significance=problem.significance)
    return BoundedThreshold(math.nan, math.nan, math.nan, theta)


def bounded(problem: Problem, rule: Rule) -> BoundedThreshold:
    """What a rule shows.

    Raises:
        InputError: if the rule cannot be applied to these scores, or not to this family.
    """
    if rule.guesses:
        return _guess(problem, rule)
    chosen: BoundedThreshold = rule.function(problem)
    return chosen
