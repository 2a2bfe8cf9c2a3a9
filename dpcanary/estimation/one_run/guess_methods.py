"""Methods by which a number of right guesses refutes a theta.

Each is a function of guesses, a family and a significance. It returns the function from theta to
whether guesses are right too often for it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, betaincinv, gammaln, log_expit, ndtr

from dpcanary.core.optional_packages import is_installed
from dpcanary.errors import InputError
from dpcanary.estimation.families import GRID, Family
from dpcanary.estimation.one_run.slot_guesses import Guesses

Floats = NDArray[np.float64]

# Grids of `mahloujifar`: beyond the last point, rates are almost 1; chords are extended.
_QUANTILES = slice(0, int(np.searchsorted(GRID, 6.0)))
_RATES = np.asarray(ndtr(GRID[_QUANTILES]))
# Quadrature for `order_statistic`.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def steinke(guesses: Guesses, *, family: Family, significance: float) -> Callable[[float], bool]:
    """Refutes an epsilon of (epsilon, delta)-DP, whatever the slots share.

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


def mahloujifar(
    guesses: Guesses, *, family: Family, significance: float
) -> Callable[[float], bool]:
    """Refutes a theta of any symmetric family, whatever the slots share.

    From Mahloujifar et al. (2024), Algorithm 3, for guesses between two worlds (Boglioni et al.,
    Algorithm 4, with the misprints mended: counts are divided by the number of slots, and h never
    falls). The curves of the family must be their own inverses.
    """
    counts = guesses.num_slots, guesses.num_guesses, guesses.num_correct

    def is_refuted(theta: float) -> bool:
        curve = family.curves(np.array([theta]))[0]
        return recursion_refutes(curve, counts, significance=significance)

    return is_refuted


def recursion_refutes(
    curve: Floats,
    counts: tuple[int, int, int],
    *,
    significance: float,
    own: float = 1.0,
    other: float = 1.0,
) -> bool:
    """Whether so many right guesses refute a curve that is its own inverse.

    Args:
        curve: of a mechanism, on `GRID`; see `Family.curves`.
        counts: numbers of slots, guesses and right guesses.
        significance: of the refutation.
        own: the share of right guesses that count, for guesses that are lists of values: of the
            values that the slot could have had instead, those that are not in the list.
        other: the probability that a wrong guess names one such value.
    """
    # With x = 1 - f(y), y is f(1 - x), as f is its own inverse; f(1 - Phi(z)) is in the table.
    rates, inverse = _RATES / own, np.asarray(ndtr(curve[_QUANTILES])) / other
    slopes = np.diff(inverse) / np.diff(rates)
    return bool(_compiled_recursion()(rates, inverse, slopes, *counts, significance))


@cache
def _compiled_recursion() -> Callable[..., Any]:
    """The recursion, compiled where Numba is installed."""
    if not is_installed("numba"):
        return lambda *arguments: _recursion(*(_plain(argument) for argument in arguments))
    import numba  # takes long to import, and the other methods do not need it

    return numba.njit(cache=True)(_recursion)  # type: ignore[no-any-return]


def _plain(argument: Any) -> Any:
    """An array as a list, whose numbers Python reads several times as fast."""
    return argument.tolist() if isinstance(argument, np.ndarray) else argument


def _recursion(
    rates: Floats,
    inverse: Floats,
    slopes: Floats,
    num_slots: int,
    num_guesses: int,
    num_correct: int,
    significance: float,
) -> bool:
    """Whether the recursion from the observed number of right guesses down to none refutes.

    `rates` are probabilities x, ascending; `inverse` has the y with 1 - f(y) = x for each x, and
    `slopes` those of the chords between them.
    """
    right = significance * num_correct / num_slots
    wrong = significance * (num_guesses - num_correct) / num_slots
    place = 1
    for i in range(num_correct - 1, -1, -1):
        while place < len(slopes) - 2 and rates[place + 1] < right:
            place += 1
        # The inverse is convex. So it lies above the chords beside the one over `right`.
        before = inverse[place] + slopes[place - 1] * (right - rates[place])
        after = inverse[place + 1] + slopes[place + 1] * (right - rates[place + 1])
        higher = max(before, after)
        if higher > wrong:
            right += i / (num_guesses - i) * (higher - wrong)
            wrong = higher
        if right + wrong >= num_guesses / num_slots:
            return True
    return right + wrong >= num_guesses / num_slots


def order_statistic(
    guesses: Guesses, *, family: Family, significance: float
) -> Callable[[float], bool]:
    """Refutes a theta if slots are independent of one another."""
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
