"""The bound of Mahloujifar et al. (2024) for any trade-off curve."""

from collections.abc import Callable

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpcanary.estimation.families import GRID, Family
from dpcanary.estimation.one_run.slots import Guesses

Floats = NDArray[np.float64]

# Beyond the last point, rates can hardly be told from 1; chords are extended.
_QUANTILES = slice(0, int(np.searchsorted(GRID, 6.0)))
_RATES = np.asarray(ndtr(GRID[_QUANTILES]))


def refutes(guesses: Guesses, *, family: Family, significance: float) -> Callable[[float], bool]:
    """Whether guesses are right too often for a theta: a function of theta.

    From Mahloujifar et al., Algorithm 3, for guesses between two worlds (Boglioni et al., Algorithm
    4, with the misprints mended: counts are divided by the number of slots, and h never falls). The
    curves of the family must be their own inverses.
    """
    counts = guesses.num_slots, guesses.num_guesses, guesses.num_correct

    def is_refuted(theta: float) -> bool:
        # With x = 1 - f(y), y is f(1 - x), as f is its own inverse; f(1 - Phi(z)) is in the table.
        inverse = np.asarray(ndtr(family.curves(np.array([theta]))[0][_QUANTILES]))
        slopes = np.diff(inverse) / np.diff(_RATES)
        return bool(_is_refuted(_RATES, inverse, slopes, *counts, significance))

    return is_refuted


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _is_refuted(
    rates: Floats,
    inverse: Floats,
    slopes: Floats,
    num_slots: int,
    num_guesses: int,
    num_correct: int,
    significance: float,
) -> bool:
    """The recursion, from the observed number of right guesses down to none.

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
