"""The local level of a confidence band that holds at all thresholds at once.

A Clopper-Pearson bound at level `eta` at each of the n thresholds that n scores can tell apart
fails somewhere with a probability far above `eta`. For continuous scores that probability depends
on n and `eta` alone: with U_(1) < ... < U_(n) the order statistics of n uniforms, some bound fails
exactly when U_(i) exceeds its own (1 - eta) quantile for some i (ties only make failure rarer).
It is a boundary-crossing probability of an empirical distribution function, computed here exactly.
"""

import math
from bisect import bisect_left
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv
from scipy.stats import poisson

from dpcanary.errors import InputError
from dpcanary.estimation.local_level_table import LEVEL, LOCAL_LEVELS

# Mass below this share of the largest state cannot change the sixth digit of the result.
_NEGLIGIBLE = 1e-18
_EXACT_UP_TO = 1_000


@lru_cache(maxsize=256)
def simultaneous_local_level(*, num_scores: int, level: float) -> float:
    """The local level at which all thresholds' bounds hold at once, but for `level`.

    Up to 1,000 scores, and for any level but the tabulated one, it is computed; otherwise it is
    read from a table at the next larger tabulated number of scores, which errs on the safe side
    since the local level falls with n (by less than 2 % from one entry to the next).

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
    # Below it, the probability that is solved for drowns in its own rounding errors.
    if num_scores < 1 or not 1e-9 <= level < 1:
        raise InputError(f"no local level for num_scores={num_scores}, level={level}")
    sizes = [size for size, _ in LOCAL_LEVELS]
    if num_scores > _EXACT_UP_TO and level == LEVEL and num_scores <= sizes[-1]:
        return LOCAL_LEVELS[bisect_left(sizes, num_scores)][1]
    return compute_local_level(num_scores=num_scores, level=level)


def compute_local_level(*, num_scores: int, level: float) -> float:
    """Solves `failure_probability(eta) = level` for `eta`, from below, to 0.5 % of the level."""
    local = level / (1.0 + 4.0 * math.log(num_scores))
    while True:
        failure = failure_probability(num_scores=num_scores, local_level=local)
        if 0.995 * level <= failure <= level:
            return local
        # Nearly proportional in the local level, so this converges in a few rounds.
        local *= 0.9975 * level / failure


def failure_probability(*, num_scores: int, local_level: float) -> float:
    """Probability that any of the n Clopper-Pearson bounds at one local level fails.

    With b_i the quantile that U_(i) must not exceed, no bound fails when the number of uniforms
    below b_i is at least i for every i. Their counting process is a Poisson process of rate n
    conditioned on n events, so one pass over i with Poisson steps gives the probability, in
    positive terms only (after Moscovich and Nadler, 2017).

    Args:
        num_scores: number of scores of one world, n >= 1.
        local_level: failure probability of each single bound, in (0, 1).

    Returns:
        The probability, with an absolute error below 1e-9.
    """
    n = num_scores
    ranks = np.arange(1, n + 1)
    bounds = betainccinv(ranks, n - ranks + 1.0, local_level)
    rates = n * np.diff(bounds, prepend=0.0)
    state, lowest = np.ones(1), 0  # P(count = lowest + offset, no failure so far)
    for rank, rate in zip(ranks.tolist(), rates.tolist(), strict=True):
        state = np.convolve(state, _poisson_pmf(rate))
        state, lowest = _keep(state, lowest, first=rank, last=n)
    survival = state[n - lowest] * math.exp(-n * (1.0 - bounds[-1])) / poisson.pmf(n, n)
    return float(1.0 - survival)


def _keep(
    state: NDArray[np.float64], lowest: int, *, first: int, last: int
) -> tuple[NDArray[np.float64], int]:
    """Cuts the state to the counts first..last and trims what cannot matter above."""
    state = state[max(first - lowest, 0) : last - lowest + 1]
    lowest = max(first, lowest)
    kept = np.flatnonzero(state > _NEGLIGIBLE * state.max())
    return state[: kept[-1] + 1], lowest


def _poisson_pmf(rate: float) -> NDArray[np.float64]:
    """The Poisson probabilities that are not negligible, from 0 on."""
    size = int(rate + 9.0 * math.sqrt(rate) + 18.0)
    factors = np.full(size, rate)
    factors[0] = math.exp(-rate)
    factors[1:] /= np.arange(1, size)
    return np.cumprod(factors)


if __name__ == "__main__":  # prints the table of local_level_table.py; takes a quarter of an hour
    size = float(_EXACT_UP_TO)
    while size < 2.6e5:
        entry = compute_local_level(num_scores=round(size), level=LEVEL)
        print(f"    ({round(size)}, {entry * (1 - 5e-5):.4e}),", flush=True)
        size *= 1.1
