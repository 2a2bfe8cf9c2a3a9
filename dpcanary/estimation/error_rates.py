"""Error rates of the attack `world 0 if score >= threshold`, and bounds on them."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, gammaln, xlogy

from dpcanary.core.argument_checks import checked_real
from dpcanary.errors import InputError

# The simultaneous level can be computed down to half of this.
LEAST_SIGNIFICANCE = 2e-9


def checked_significance(significance: float) -> float:
    """The significance as a float, or an `InputError` if it is not a number in [2e-9, 0.5]."""
    # A bound that fails more often than it holds is no bound.
    value = checked_real("significance", significance, most=0.5, most_included=True)
    if value < LEAST_SIGNIFICANCE:
        raise InputError(f"significance is {value}; it must be at least {LEAST_SIGNIFICANCE:g}")
    return value


@lru_cache(maxsize=64)
def clopper_pearson_upper_table(*, num_trials: int, level: float) -> NDArray[np.float64]:
    """Upper bounds for every possible count of errors in n independent trials.

    Args:
        num_trials: n.
        level: probability with which each single bound may fail, in (0, 1).

    Returns:
        Shape (n + 1,), read-only: entry k bounds the error rate after k errors.

    Example:
        >>> table = clopper_pearson_upper_table(num_trials=100, level=0.025)
        >>> [round(float(table[k]), 4) for k in (0, 10, 100)]
        [0.0362, 0.1762, 1.0]
    """
    table = clopper_pearson_upper(np.arange(num_trials + 1), num_trials=num_trials, level=level)
    table.flags.writeable = False
    return table


def clopper_pearson_upper(
    errors: NDArray[np.int64], *, num_trials: int, level: float
) -> NDArray[np.float64]:
    """Clopper-Pearson upper limits of some counts of errors."""
    all_wrong = errors == num_trials
    bounds = betainccinv(errors + 1.0, np.where(all_wrong, 1, num_trials - errors), level)
    return np.where(all_wrong, 1.0, bounds)


# A world of more scores is judged at some of its thresholds alone.
MOST_DISTINCT = 32_768
_AT_ENDS, _IN_HALF = 256, 1_024


@lru_cache(maxsize=64)
def distinct_counts(num_scores: int) -> NDArray[np.int64]:
    """The counts of errors among n distinct scores; others count as the next larger.

    Up to `MOST_DISTINCT` scores these are all. Of more scores, they are all counts near both
    ends, and in between some two thousand, dense where counts are small: neighbours differ by
    sqrt(2 n) / 1,024 of a count's standard deviation, which is .25 for the least such n and 1.4 for
    n = 10^6. They are fixed before scores are seen, and a threshold's errors only become more. So
    a statistic of these counts is monotone in the comparisons of scores, and bounds that hold at
    these counts hold at all.

    Returns:
        Rising from 0 to n, read-only.
    """
    counts = np.arange(num_scores + 1)
    if num_scores > MOST_DISTINCT:
        half = np.ceil(num_scores / 2 * (np.arange(_IN_HALF + 1) / _IN_HALF) ** 2).astype(np.int64)
        half = np.union1d(half, np.arange(_AT_ENDS))
        counts = np.union1d(half, num_scores - half)
    counts.flags.writeable = False
    return counts


def next_distinct(errors: NDArray[np.int64], num_scores: int) -> NDArray[np.int64]:
    """The counts that errors among n scores count as."""
    counts = distinct_counts(num_scores)
    return counts[np.searchsorted(counts, errors)]


def count_errors(
    *,
    world0_scores: NDArray[np.float64],
    world1_scores: NDArray[np.float64],
    threshold: float | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Counts errors by one sort of each world's scores.

    Args:
        world0_scores: shape (n0,).
        world1_scores: shape (n1,).
        threshold: the only threshold to look at. By default the distinct world-0 scores are the
            thresholds. Any other threshold has the false negatives of the next larger world-0
            score, and at least its false positives, so none is better.

    Returns:
        The thresholds, the false positives (world-1 scores at or above each threshold) and the
        false negatives (world-0 scores below it), each of shape (k,).
    """
    sorted0, sorted1 = np.sort(world0_scores), np.sort(world1_scores)
    thresholds = np.unique(sorted0) if threshold is None else np.array([threshold])
    false_positives = len(sorted1) - np.searchsorted(sorted1, thresholds, side="left")
    return thresholds, false_positives, np.searchsorted(sorted0, thresholds, side="left")


def checked_scores(name: str, scores: ArrayLike) -> NDArray[np.float64]:
    """The scores as a flat float array.

    Raises:
        InputError: if they are not one-dimensional real numbers, are empty or masked, or hold a
            NaN; the message says where.
    """
    if np.ma.isMaskedArray(scores):
        raise InputError(f"{name} is a masked array: a missing score must be mended, not masked")
    try:
        numbers = np.asarray(scores)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from error
    if numbers.dtype.kind not in "fiub":
        raise InputError(f"{name} must be real numbers, not {numbers.dtype}")
    array = numbers.astype(np.float64)
    if array.ndim != 1 or array.size == 0:
        raise InputError(
            f"{name} must be one-dimensional and not empty; its shape is {array.shape}"
        )
    missing = np.flatnonzero(np.isnan(array))
    if missing.size:
        raise InputError(
            f"{name}[{missing[0]}] is NaN ({missing.size} of {array.size} are): a run that"
            " diverged must be mended or trained again, never dropped"
        )
    return array


def checked_worlds(
    world0_scores: ArrayLike, world1_scores: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The scores of both worlds as flat float arrays; see `checked_scores`."""
    return (
        checked_scores("world0_scores", world0_scores),
        checked_scores("world1_scores", world1_scores),
    )


# The failure probability that the table is for: half of the usual significance of 0.05.
LEVEL = 0.025

# (number of scores of one world, local level), rounded down; made by release/packaged_tables.py.
# fmt: off
LOCAL_LEVELS: tuple[tuple[int, float], ...] = (
    (1000, 5.3222e-04), (1100, 5.2003e-04), (1210, 5.0831e-04), (1331, 4.9706e-04),
    (1464, 4.8624e-04), (1611, 4.7578e-04), (1772, 4.6576e-04), (1949, 4.5610e-04),
    (2144, 4.4679e-04), (2358, 4.3782e-04), (2594, 4.2915e-04), (2853, 4.2080e-04),
    (3138, 4.1273e-04), (3452, 4.0492e-04), (3797, 3.9738e-04), (4177, 3.9008e-04),
    (4595, 3.8302e-04), (5054, 3.7620e-04), (5560, 3.6957e-04), (6116, 3.6316e-04),
    (6727, 3.5696e-04), (7400, 3.5093e-04), (8140, 3.4509e-04), (8954, 3.3943e-04),
    (9850, 3.3392e-04), (10835, 3.2858e-04), (11918, 3.2340e-04), (13110, 3.1836e-04),
    (14421, 3.1346e-04), (15863, 3.0869e-04), (17449, 3.0406e-04), (19194, 2.9955e-04),
    (21114, 2.9516e-04), (23225, 2.9089e-04), (25548, 2.8673e-04), (28102, 2.8267e-04),
    (30913, 2.7872e-04), (32768, 2.7635e-04),
)
# fmt: on

# Mass below this share of the largest state cannot change the sixth digit of the result.
_NEGLIGIBLE = 1e-18
# Steps of more counts, which occur where several counts are joined, are convolved by Fourier
# transforms. These have an error of a small part of the largest state; smaller ones are nothing.
_LONG, _ROUNDED = 256, 1e-15
_LARGE, _MOST_ROUNDS = 1e5, 50
_EXACT_UP_TO = 1_000


@lru_cache(maxsize=256)
def simultaneous_local_level(*, num_scores: int, level: float) -> float:
    """The local level at which all bounds hold at once, except with probability `level`.

    From 1,001 to 32,768 scores, at the tabulated level, it is read from a table at the next larger
    tabulated number of scores. This is safe, since the local level falls with n (by less than 3 %
    from one entry to the next). Otherwise it is computed. Of more than `MOST_DISTINCT` scores, it
    is that of the bounds at `distinct_counts`.

    Args:
        num_scores: number of scores of one world, n >= 1.
        level: probability with which any of the bounds may fail, in [1e-9, 1).

    Raises:
        InputError: if an argument is out of range.

    Example:
        >>> f"{simultaneous_local_level(num_scores=1250, level=0.025):.1e}"
        '5.0e-04'
    """
    # Below 1e-9 the probability is of the size of its own rounding errors.
    if num_scores < 1 or not 1e-9 <= level < 1:
        raise InputError(f"no local level for num_scores={num_scores}, level={level}")
    if level == LEVEL and _EXACT_UP_TO < num_scores <= LOCAL_LEVELS[-1][0]:
        return next(local for size, local in LOCAL_LEVELS if size >= num_scores)
    return compute_local_level(num_scores=num_scores, level=level)


def compute_local_level(*, num_scores: int, level: float) -> float:
    """The local level whose failure probability is between 99.5 % and 100 % of `level`."""
    local = level / (1.0 + 4.0 * math.log(num_scores))
    for _ in range(_MOST_ROUNDS):
        failure = failure_probability(num_scores=num_scores, local_level=local)
        if 0.995 * level <= failure <= level:
            return local
        # The failure probability is nearly proportional to the local level: few rounds are needed.
        local *= 0.9975 * level / max(failure, 0.1 * level)
    raise InputError(
        f"a failure probability of {level:g} for {num_scores:,} scores is beyond the precision of"
        " rule 'simultaneous': use a larger significance, or another rule"
    )


def failure_probability(*, num_scores: int, local_level: float) -> float:
    """Probability that any of the n Clopper-Pearson bounds at one local level fails.

    n scores can tell n thresholds apart. For continuous scores, with U_(1) < ... < U_(n) the order
    statistics of n uniforms, some bound fails exactly when U_(i) exceeds its own quantile b_i for
    some i. Ties only make a failure rarer. No bound fails if at least i uniforms are below b_i, for
    every i. The uniforms' counting process is a Poisson process of rate n given n events. So one
    pass over i with Poisson steps gives the probability, as a sum of positive terms, with an
    absolute error below 1e-9 (after Moscovich and Nadler, 2017). If several counts are joined,
    i takes these ranks alone.
    """
    n = num_scores
    ranks = distinct_counts(n)[:-1] + 1
    bounds = betainccinv(ranks, n - ranks + 1.0, local_level)
    rates = n * np.diff(bounds, prepend=0.0)
    state, lowest = np.ones(1), 0  # P(count = lowest + offset, no failure so far)
    for rank, rate in zip(ranks.tolist(), rates.tolist(), strict=True):
        fewest, steps = _poisson_pmf(rate)
        state, lowest = _convolved(state, steps), lowest + fewest
        # Drop counts below the rank, which are failures, and counts above n, which are impossible.
        state = state[max(rank - lowest, 0) : n - lowest + 1]
        state = state[: np.flatnonzero(state > _NEGLIGIBLE * state.max())[-1] + 1]
        lowest = max(rank, lowest)
    # P(n events), for large n by Stirling's series: its terms cancel otherwise. (scipy.stats takes
    # long to import.)
    log_n_events = float(xlogy(n, n) - gammaln(n + 1) - n)
    if n > _LARGE:
        log_n_events = -0.5 * math.log(2 * math.pi * n) - 1 / (12 * n)
    n_events = math.exp(log_n_events)
    survival = state[n - lowest] * math.exp(-n * (1.0 - bounds[-1])) / n_events
    return float(1.0 - survival)


def _poisson_pmf(rate: float) -> tuple[int, NDArray[np.float64]]:
    """The Poisson probabilities that are not negligible, and the count of the first."""
    reach = 9.0 * math.sqrt(rate) + 18.0
    counts = np.arange(max(0, int(rate - reach)), int(rate + reach))
    return int(counts[0]), np.exp(xlogy(counts, rate) - rate - gammaln(counts + 1.0))


def _convolved(state: NDArray[np.float64], steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distribution of a sum; by Fourier transforms where that is much faster."""
    if len(steps) < _LONG:
        return np.convolve(state, steps)
    from scipy.signal import fftconvolve  # takes long to import

    out = np.asarray(fftconvolve(state, steps))
    out[out < _ROUNDED * out.max()] = 0.0
    return out
