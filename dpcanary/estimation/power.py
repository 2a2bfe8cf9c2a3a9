"""What an audit can show, before anything is trained."""

from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from sys import float_info

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.printing import p_value_up, rounded_down
from dpcanary.errors import InputError
from dpcanary.estimation.anytime import EProcess, lines_of_curves, paired
from dpcanary.estimation.conversion_families import family_of
from dpcanary.estimation.error_rates import LEAST_SIGNIFICANCE, checked_significance, checked_worlds
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.families import AUC, GDP, STRICT_SCAN, direct_family
from dpcanary.estimation.lower_bound import estimate_epsilon
from dpcanary.estimation.null_distributions.null_tables import calibrated_bound
from dpcanary.estimation.null_distributions.simulated_nulls import pair_statistics
from dpcanary.estimation.null_distributions.statistics import (
    curve_of,
    observed_statistics,
    scan_terms,
)
from dpcanary.estimation.rule_catalogue import ORDER, RULES, ThresholdRule
from dpcanary.estimation.subsampled_family import condition_on_worlds


@dataclass(frozen=True)
class ClaimTest:
    """The result of `assess_claim`.

    Attributes:
        p_value: under the claim, it is at most p with probability at most p, for every p.
        num_simulations: audits of the claimed mechanism that it was compared with; the p-value is
            at least 1 / (num_simulations + 1). None if it holds at all numbers of runs at once.
        assumption: in words, what must hold so that the p-value is valid.
        is_least: whether it is the smallest that so many simulations, the significances that are
            searched, or floats can give: the evidence may be stronger.
    """

    p_value: float
    num_simulations: int | None
    assumption: str
    is_least: bool = False

    def __str__(self) -> str:
        least = " (the least that can be shown)" if self.is_least else ""
        return f"p = {p_value_up(self.p_value)}{least} for the claim, if {self.assumption}"


def assess_claim(
    *,
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    mechanism: Mechanism | float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    num_simulations: int = 9_999,
    seed: int = 0,
) -> ClaimTest:
    """A p-value for the claim that a training is as private as it was accounted to be.

    The scores' comparisons are compared with those of simulated audits, by the best possible
    adversary, of exactly the accounted mechanism: no adversary's statistics have a larger upper
    tail (docs/proofs.md, least favourable pair). The statistics are the AUC and the best
    threshold; the one that is rarer decides, and is compared with the rarer one of every simulated
    audit. The p-value is exact at any number of simulations (Barnard, 1963).

    A small p-value is evidence that the training leaks more than was accounted, for example by a
    bug, if the scores are independent. A large one shows nothing: the adversary may be weak.

    Args:
        world0_scores: shape (n0,); one score per run of world 0. Higher means world 0 is likelier.
            Under add/remove and zero-out adjacency, world 0 is the one with the record.
        world1_scores: shape (n1,).
        mechanism: the accounted mechanism, or mu of Gaussian differential privacy. Or give:
        epsilon: the claimed epsilon, which is tested without an assumption on the mechanism, and
        delta: its delta.
        num_simulations: audits to simulate. A second at 1,000 scores per world.
        seed: of the simulation. The p-value is valid over the scores and the simulation together;
            give another seed to each of several claims.

    Raises:
        InputError: if a score is NaN or an argument is out of range, or unless one claim is given.
        AccountingError: if the mechanism's curve cannot be computed.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(1)
        >>> world0_scores, world1_scores = rng.normal(2, 1, 500), rng.normal(0, 1, 500)
        >>> for mu in (2.0, 1.5):
        ...     test = assess_claim(
        ...         world0_scores=world0_scores, world1_scores=world1_scores, mechanism=mu
        ...     )
        ...     print(test.p_value < 0.05)
        False
        True
    """
    scores0, scores1 = checked_worlds(world0_scores, world1_scores)
    num_simulations = checked_count("num_simulations", num_simulations, least=99)
    curve = _claimed_curve(mechanism, epsilon, delta)
    sizes = len(scores0), len(scores1)
    # The significance sets the strictness of the scan, not the level of the test.
    terms = scan_terms(family=GDP, sizes=sizes, significance=0.05)
    simulated = pair_statistics(
        curve=curve, sizes=sizes, terms=terms, num_samples=num_simulations, seed=seed
    )
    observed = observed_statistics(scores0, scores1, terms)
    pool = np.concatenate([observed[:, None], simulated], axis=1)[[STRICT_SCAN, AUC]]
    # For each audit: how many of all audits are at least as extreme, by its rarer statistic.
    rarest = np.min([_num_at_least(values) for values in pool], axis=0)
    p_value = float(np.mean(rarest <= rarest[0]))
    is_least = p_value * (num_simulations + 1) < 1.5  # rarer than all that were simulated
    return ClaimTest(p_value, num_simulations, _assumption(mechanism), is_least)


def assess_claim_by_bounds(
    *,
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    epsilon: float,
    delta: float,
    threshold_rule: ThresholdRule | str,
    conversion: Conversion | str,
    mechanism: Mechanism | None = None,
) -> ClaimTest:
    """A p-value for a claimed epsilon: the least significance at which a bound exceeds it.

    For rules whose bounds hold for any dependence between the scores, which `assess_claim` does
    not. Significances from 2e-9 to 0.5 are searched; the p-value is rounded up by up to 1 %.

    Args:
        world0_scores: shape (n0,). Higher means world 0 is likelier.
        world1_scores: shape (n1,).
        epsilon: the claimed epsilon.
        delta: its delta.
        threshold_rule: whose bounds do not fall as the significance rises, such as `mahloujifar`.
        conversion: see `Conversion`.
        mechanism: only for conversion `subsampled_gaussian`.

    Raises:
        InputError: as `estimate_epsilon`.
    """
    epsilon = checked_real("epsilon", epsilon, zero_included=True)
    low, high = LEAST_SIGNIFICANCE, 0.5
    bound = partial(
        estimate_epsilon,
        world0_scores=world0_scores,
        world1_scores=world1_scores,
        delta=delta,
        threshold_rule=threshold_rule,
        conversion=conversion,
        mechanism=mechanism,
    )
    largest = bound(significance=high)
    if largest.epsilon_lower <= epsilon:
        return ClaimTest(1.0, None, largest.assumption)
    while high > 1.01 * low:
        middle = sqrt(low * high)
        exceeds = bound(significance=middle).epsilon_lower > epsilon
        low, high = (low, middle) if exceeds else (middle, high)
    return ClaimTest(high, None, largest.assumption, is_least=low == LEAST_SIGNIFICANCE)


def assess_claim_anytime(
    *,
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    mechanism: Mechanism | float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
) -> ClaimTest:
    """A p-value for the same claim that holds at every number of runs, however it was chosen.

    It is 1 over the largest wealth of the bets of rule `anytime` against the mechanism's curve.
    Nothing is simulated.

    Args:
        world0_scores: shape (n0,), in the order of the runs.
        world1_scores: shape (n1,), of world 1. The k-th scores of both worlds are a pair.
        mechanism: the accounted mechanism, or mu of Gaussian differential privacy. Or give:
        epsilon: the claimed epsilon, as `assess_claim` takes it, and
        delta: its delta.

    Raises:
        InputError: as `assess_claim`, or if the scores are sorted.
        AccountingError: if the mechanism's curve cannot be computed.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(1)
        >>> test = assess_claim_anytime(
        ...     world0_scores=rng.normal(2, 1, 500),
        ...     world1_scores=rng.normal(0, 1, 500),
        ...     mechanism=1.5,
        ... )
        >>> test.p_value < 0.05
        True
    """
    pairs = paired(*checked_worlds(world0_scores, world1_scores))
    process = EProcess(
        lines_of_curves(np.zeros(1), _claimed_curve(mechanism, epsilon, delta)[None])
    )
    process.add(*pairs)
    p_value = max(float(1 / process.largest[0]), float_info.min)
    is_least = p_value == float_info.min
    return ClaimTest(p_value, None, f"{ORDER}; {_assumption(mechanism)}", is_least)


def _claimed_curve(
    mechanism: Mechanism | float | None, epsilon: float | None, delta: float | None
) -> NDArray[np.float64]:
    """The trade-off curve of a claim: that of a mechanism, or of an epsilon and its delta."""
    if mechanism is not None and epsilon is None and delta is None:
        return curve_of(mechanism)
    if mechanism is not None or epsilon is None or delta is None:
        raise InputError("give the claim as mechanism, or as epsilon and delta")
    family = direct_family(checked_real("delta", delta, most=1.0))
    claimed = checked_real("epsilon", epsilon, zero_included=True)
    return np.asarray(family.curves(np.array([claimed]))[0])


def _assumption(mechanism: Mechanism | float | None) -> str:
    worlds = condition_on_worlds(mechanism) if isinstance(mechanism, Mechanism) else ""
    return f"the scores are independent; nothing is assumed of the adversary{worlds}"


def _num_at_least(values: NDArray[np.float32]) -> NDArray[np.int64]:
    return len(values) - np.searchsorted(np.sort(values), values, side="left")


# Audits to simulate, fewer if they have many runs: their bounds scatter less.
_MOST_AUDITS, _FEWEST_AUDITS, _RUNS = 4_000, 500, 40_000_000
# Runs, of both worlds together, among which `runs_needed` searches: powers of two, then between.
_FEWEST_RUNS, MOST_RUNS = 16, 524_288


class TooManyRunsError(InputError):
    """A target needs more runs than are tried."""


@dataclass(frozen=True)
class ExpectedBound:
    """The bounds on epsilon, epsilon_lower, that audits of one mechanism give.

    Attributes:
        mean: of the bounds.
        standard_error: of the mean, from the finite number of simulated audits.
        low: the 5 % quantile.
        median: the 50 % quantile.
        high: the 95 % quantile.
    """

    mean: float
    standard_error: float
    low: float
    median: float
    high: float

    def __str__(self) -> str:
        spread = f"{rounded_down(self.low)} to {rounded_down(self.high)} in 90 % of audits"
        return f"a bound of {rounded_down(self.mean)} on average, {spread}"


def expected_bound(
    *,
    mechanism: Mechanism | float,
    num_runs: int,
    delta: float,
    significance: float = 0.05,
    threshold_rule: ThresholdRule | str = ThresholdRule.COMBINED,
    conversion: Conversion | str = Conversion.GDP,
) -> ExpectedBound:
    """The bound that an audit with the best possible adversary will give.

    Weaker adversaries give less. The audits are simulated from the mechanism's least favourable
    pair.

    Args:
        mechanism: what is audited, or its mu of Gaussian differential privacy.
        num_runs: models of both worlds together, half of them in each.
        delta: in (0, 1).
        significance: of the bound.
        threshold_rule: `combined`, `calibrated` or `rank_sum`.
        conversion: see `Conversion`.

    Raises:
        InputError: if an argument is out of range.

    Example:
        >>> bound = expected_bound(mechanism=2.0, num_runs=1000, delta=1e-5)
        >>> 8.9 < bound.mean < 9.3  # of an epsilon of 9.997
        True
    """
    num_runs = checked_count("num_runs", num_runs, least=4)
    bounds = _bounds(mechanism, num_runs, delta, significance, threshold_rule, conversion)
    low, median, high = np.quantile(bounds, (0.05, 0.5, 0.95)).tolist()
    error = float(bounds.std() / sqrt(len(bounds)))
    return ExpectedBound(float(bounds.mean()), error, low, median, high)


def runs_needed(
    *,
    mechanism: Mechanism | float,
    exceed: float,
    delta: float,
    power: float = 0.8,
    significance: float = 0.05,
    threshold_rule: ThresholdRule | str = ThresholdRule.COMBINED,
    conversion: Conversion | str = Conversion.GDP,
) -> int:
    """How many runs show, with a given power, that epsilon exceeds a number.

    Args:
        mechanism: what is audited, by the best possible adversary, or its mu.
        exceed: the epsilon to be exceeded, such as that under add/remove adjacency.
        delta: in (0, 1).
        power: probability that the bound is above `exceed`.
        significance: of the bound.
        threshold_rule: `combined`, `calibrated` or `rank_sum`.
        conversion: see `Conversion`.

    Returns:
        The even number of runs, of both worlds together; found by simulation to a few per cent.

    Raises:
        InputError: if an argument is out of range, or if 524,288 runs are not enough: if `exceed`
            is at least the mechanism's own epsilon, no number is.

    Example:
        >>> runs_needed(mechanism=2.0, exceed=4.4, delta=1e-5) < 100
        True
    """
    exceed, power = checked_real("exceed", exceed), checked_real("power", power, most=1.0)
    num_runs, share, share_below = _FEWEST_RUNS, 0.0, 0.0
    while num_runs <= MOST_RUNS:
        bounds = _bounds(mechanism, num_runs, delta, significance, threshold_rule, conversion)
        share = float((bounds > exceed).mean())
        if share >= power:
            break
        num_runs, share_below = 2 * num_runs, share
    else:
        raise TooManyRunsError(
            f"{MOST_RUNS:,} runs, the most that are tried, exceed an epsilon of {exceed:g} with a"
            f" probability of only {share:.3f}: it is too near to the epsilon of the mechanism, or"
            " not below it; give a lower one"
        )
    if num_runs == _FEWEST_RUNS:
        return num_runs
    # Between two numbers, the power's normal quantile is about linear in sqrt(runs). It jumps where
    # the rule changes with the size, so each estimate is simulated, and becomes the lower number if
    # its power is too small.
    least, below = 1 / _MOST_AUDITS, num_runs // 2
    high = ndtri(min(share, 1 - least))
    while True:
        low = ndtri(max(share_below, least))
        root = sqrt(below) + (ndtri(power) - low) / (high - low) * (sqrt(num_runs) - sqrt(below))
        between = max(2 * ceil(root**2 / 2), below + 2)
        if between >= num_runs:
            return num_runs
        bounds = _bounds(mechanism, between, delta, significance, threshold_rule, conversion)
        below, share_below = between, float((bounds > exceed).mean())
        if share_below >= power:
            return between


def _bounds(
    mechanism: Mechanism | float,
    num_runs: int,
    delta: float,
    significance: float,
    threshold_rule: ThresholdRule | str,
    conversion: Conversion | str,
) -> NDArray[np.float64]:
    """The epsilon_lower of simulated audits."""
    rule, conversion = ThresholdRule(threshold_rule), Conversion(conversion)
    if not RULES[rule].is_calibrated:
        calibrated_rules = ", ".join(name for name, entry in RULES.items() if entry.is_calibrated)
        raise InputError(
            f"the power of threshold_rule {str(rule)!r} is not known; known: {calibrated_rules}"
        )
    significance = checked_significance(significance)
    delta = checked_real("delta", delta, most=1.0)
    of_family = mechanism if isinstance(mechanism, Mechanism) else None
    if conversion is not Conversion.SUBSAMPLED_GAUSSIAN:
        of_family = None
    family = family_of(conversion, delta=delta, mechanism=of_family)
    sizes = num_runs - num_runs // 2, num_runs // 2
    statistics = pair_statistics(
        curve=curve_of(mechanism),
        sizes=sizes,
        terms=scan_terms(family=family, sizes=sizes, significance=significance),
        num_samples=max(_FEWEST_AUDITS, min(_MOST_AUDITS, _RUNS // num_runs)),
        seed=0,
    )
    thetas = [
        calibrated_bound(
            family=family,
            looks=(sizes,),
            look=0,
            significance=significance,
            rule=rule,
            statistics=of_audit,
        )
        for of_audit in statistics.T
    ]
    return np.array([family.epsilon(theta, delta) for theta in thetas])
