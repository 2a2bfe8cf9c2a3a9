"""What an audit can prove, before anything is trained."""

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.checks import checked_count, checked_real
from dpcanary.errors import InputError
from dpcanary.estimation.calibration.pairs import curve_of, pair_statistics
from dpcanary.estimation.calibration.statistics import scan_terms
from dpcanary.estimation.calibration.store import calibrated_bound
from dpcanary.estimation.conversions import family_of
from dpcanary.estimation.options import Conversion
from dpcanary.estimation.rules import RULES, ThresholdRule
from dpcanary.estimation.significance import checked_significance

_SEED = 0
# Audits to simulate, fewer if they have many runs: their bounds scatter less.
_MOST_AUDITS, _FEWEST_AUDITS, _RUNS = 4_000, 500, 40_000_000
# Runs, of both worlds together, among which `runs_needed` searches: powers of two, then between.
_FEWEST_RUNS, _MOST_RUNS = 16, 524_288


@dataclass(frozen=True)
class ExpectedBound:
    """The bounds on epsilon that audits of one mechanism give.

    Attributes:
        mean: of epsilon_lower.
        standard_error: of the mean, from the finite number of simulated audits.
        low: the 5 % quantile of epsilon_lower.
        median: its median.
        high: the 95 % quantile.
    """

    mean: float
    standard_error: float
    low: float
    median: float
    high: float


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
    below, above = 0, 0
    powers: dict[int, float] = {}
    num_runs = _FEWEST_RUNS
    while num_runs <= _MOST_RUNS:
        bounds = _bounds(mechanism, num_runs, delta, significance, threshold_rule, conversion)
        powers[num_runs] = float((bounds > exceed).mean())
        if powers[num_runs] >= power:
            above = num_runs
            break
        below, num_runs = num_runs, 2 * num_runs
    if not above:
        raise InputError(
            f"{_MOST_RUNS:,} runs exceed an epsilon of {exceed:g} with a probability of only"
            f" {powers[below]:.3f}; is it below the epsilon of the mechanism?"
        )
    return above if not below else _between(powers, below, above, power)


def _between(powers: dict[int, float], below: int, above: int, power: float) -> int:
    """The number of runs of the wanted power: its normal quantile is about linear in sqrt(runs)."""
    least = 1 / _MOST_AUDITS
    low, high = (ndtri(min(max(powers[n], least), 1 - least)) for n in (below, above))
    part = (ndtri(power) - low) / (high - low)
    root = sqrt(below) + part * (sqrt(above) - sqrt(below))
    return 2 * ceil(root**2 / 2)


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
        known = ", ".join(name for name, one in RULES.items() if one.is_calibrated)
        raise InputError(f"the power of threshold_rule {str(rule)!r} is not known; known: {known}")
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
        seed=_SEED,
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
