"""The local level of a confidence band that holds at all thresholds at once.

n scores can tell n thresholds apart. If each threshold has a Clopper-Pearson bound at level `eta`,
the probability that any of them fails is far above `eta`. For continuous scores it depends only on
n and `eta`: with U_(1) < ... < U_(n) the order statistics of n uniforms, some bound fails exactly
when U_(i) exceeds its own (1 - eta) quantile for some i. Ties only make a failure rarer. This is a
boundary-crossing probability of an empirical distribution function, and is computed exactly here.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv

from dpcanary.errors import InputError
from dpcanary.estimation.local_level_table import LEVEL, LOCAL_LEVELS

# Mass below this share of the largest state cannot change the sixth digit of the result.
_NEGLIGIBLE = 1e-18
_EXACT_UP_TO = 1_000


@lru_cache(maxsize=256)
def simultaneous_local_level(*, num_scores: int, level: float) -> float:
    """The local level at which all bounds hold at once, except with probability `level`.

    From 1,001 to 251,638 scores, at the tabulated level, it is read from a table at the next larger
    tabulated number of scores. This is safe, since the local level falls with n (by less than 3 %
    from one entry to the next). Otherwise it is computed.

    Args:
        num_scores: number of scores of one world, n >= 1.
        level: probability with which any of the bounds may fail, in [1e-9, 1).

    Returns:
        The local level `eta`, in (0, level].

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
    while True:
        failure = failure_probability(num_scores=num_scores, local_level=local)
        if 0.995 * level <= failure <= level:
            return local
        # The failure probability is nearly proportional to the local level: few rounds are needed.
        local *= 0.9975 * level / failure


def failure_probability(*, num_scores: int, local_level: float) -> float:
    """Probability that any of the n Clopper-Pearson bounds at one local level fails.

    Let b_i be the quantile that U_(i) must not exceed. No bound fails if at least i uniforms are
    below b_i, for every i. The uniforms' counting process is a Poisson process of rate n given n
    events. So one pass over i with Poisson steps gives the probability, as a sum of positive terms
    (after Moscovich and Nadler, 2017).

    Args:
        num_scores: number of scores of one world, n >= 1.
        local_level: failure probability of each single bound, in (0, 1).

    Returns:
        The probability, with an absolute error below 1e-9.
    """
    from scipy.stats import poisson  # takes long to import; most levels are tabulated

    n = num_scores
    ranks = np.arange(1, n + 1)
    bounds = betainccinv(ranks, n - ranks + 1.0, local_level)
    rates = n * np.diff(bounds, prepend=0.0)
    state, lowest = np.ones(1), 0  # P(count = lowest + offset, no failure so far)
    for rank, rate in zip(ranks.tolist(), rates.tolist(), strict=True):
        # Drop counts below the rank, which are failures, and counts above n, which are impossible.
        state = np.convolve(state, _poisson_pmf(rate))[max(rank - lowest, 0) : n - lowest + 1]
        state = state[: np.flatnonzero(state > _NEGLIGIBLE * state.max())[-1] + 1]
        lowest = max(rank, lowest)
    survival = state[n - lowest] * math.exp(-n * (1.0 - bounds[-1])) / poisson.pmf(n, n)
    return float(1.0 - survival)


def _poisson_pmf(rate: float) -> NDArray[np.float64]:
    """The Poisson probabilities that are not negligible, from 0 on."""
    size = int(rate + 9.0 * math.sqrt(rate) + 18.0)
    factors = np.full(size, rate)
    factors[0] = math.exp(-rate)
    factors[1:] /= np.arange(1, size)
    return np.cumprod(factors)


if __name__ == "__main__":  # prints the rows of local_level_table.py, in a quarter of an hour
    for index, size in enumerate(round(_EXACT_UP_TO * 1.1**power) for power in range(59)):
        entry = compute_local_level(num_scores=size, level=LEVEL) * (1 - 5e-5)
        print(f"({size}, {entry:.4e}),", end="\n" if index % 4 == 3 else " ", flush=True)
