"""The exact bound for slots that are independent of one another."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, betaincinv, ndtr

from dpcanary.estimation.families import GRID, Family
from dpcanary.estimation.one_run.guesses import Guesses

Floats = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


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

    Args:
        guesses: of one run, or of several.
        family: curves that are their own inverses.
        theta: which of them.
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


def refutes(guesses: Guesses, *, family: Family, significance: float) -> Callable[[float], bool]:
    """Whether guesses are right too often for a theta: a function of theta."""
    return lambda theta: (
        order_statistic_p_value(guesses, family=family, theta=theta) <= significance
    )
