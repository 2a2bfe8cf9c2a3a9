"""Tests of a number of right guesses by closed forms: for (epsilon, delta)-DP, or independence."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, betaincinv, gammaln, log_expit, ndtr

from dpcanary.errors import InputError
from dpcanary.estimation.families import GRID, Family
from dpcanary.estimation.one_run.slots import Guesses

Floats = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def steinke(guesses: Guesses, *, family: Family, significance: float) -> Callable[[float], bool]:
    """Whether guesses are right too often for an epsilon: a function of epsilon.

    Under any (epsilon, delta)-DP mechanism whose m slots have fair coins, v of r guesses are right
    with probability at most f(v) + 2 m delta max_{i >= 1} (f(v - i) - f(v)) / i, where f is the
    upper tail of Binomial(r, e^epsilon / (1 + e^epsilon)). From Steinke et al. (2023), Theorem 5.2.

    Raises:
        InputError: for a family that is not that of (epsilon, delta)-DP.
    """
    if family.delta is None:
        raise InputError(f"method 'steinke' has no bound for {family.name}, only 'direct'")
    delta, rounds, right = family.delta, guesses.num_guesses, guesses.num_correct
    if right == 0:
        return lambda epsilon: False
    counts = np.arange(rounds + 1)
    ways = gammaln(rounds + 1) - gammaln(counts + 1) - gammaln(rounds - counts + 1)
    apart = np.arange(1, right + 1)

    def is_refuted(epsilon: float) -> bool:
        logs = ways + counts * log_expit(epsilon) + (rounds - counts) * log_expit(-epsilon)
        masses = np.exp(logs)
        tail = min(float(masses[right:].sum()), 1.0)
        # f(v - i) - f(v) for i = 1, ..., v; a larger i adds nothing.
        gained = np.cumsum(masses[right - 1 :: -1])
        excess = 2 * guesses.num_slots * delta * float(np.max(gained / apart))
        return tail + excess <= significance

    return is_refuted


def order_statistic(
    guesses: Guesses, *, family: Family, significance: float
) -> Callable[[float], bool]:
    """Whether guesses of independent slots are right too often for a theta: a function of theta."""
    return lambda theta: (
        order_statistic_p_value(guesses, family=family, theta=theta) <= significance
    )


def order_statistic_p_value(guesses: Guesses, *, family: Family, theta: float) -> float:
    """The probability that the best possible guesses are right at least as often.

    The best guesses are those of the slots whose likelihood ratios are the most extreme. The share
    of slots beyond the most extreme ratio that is not guessed has the law Beta(r + 1, n - r), for r
    guesses among n slots. Given this share, guesses are right independently, each with the mean
    probability of a share of this size (after Xiang et al., 2025).

    No other guesses are right more often, for any slots that are independent of one another and
    satisfy f_theta. For, what is seen of a slot can be drawn from the ratio of the best possible
    pair; given all ratios, right guesses are independent; and the r slots with the most extreme
    ratios have the largest probabilities.

    The curves of the family must be their own inverses.
    """
    slots, rounds, right = guesses.num_slots, guesses.num_guesses, guesses.num_correct
    if right == 0:
        return 1.0
    if rounds == slots:
        return float(bdtrc(right - 1, rounds, _success(family, theta, np.ones(1))[0]))
    shares = betaincinv(rounds + 1, slots - rounds, (_NODES + 1) / 2)
    tails = bdtrc(right - 1, rounds, _success(family, theta, shares))
    return float(np.sum(_WEIGHTS * tails) / 2)


def _success(family: Family, theta: float, shares: Floats) -> Floats:
    """The probability that a guess is right, among the slots of the most extreme ratios.

    If the ratios that speak for world 0 have FPR a and FNR f(a), those and their mirror images are
    a share a + 1 - f(a) of all slots, and 1 - f(a) of all slots are guessed rightly.
    """
    false = ndtr(-GRID[::-1])
    true = 1 - ndtr(family.curves(np.array([theta]))[0][::-1])
    right = np.interp(shares, false + true, true)
    return np.asarray(np.minimum(right / shares, 1.0))
