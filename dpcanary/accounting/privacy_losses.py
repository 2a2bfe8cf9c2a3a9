"""The epsilon of two known distributions, from draws of their privacy loss."""

from dataclasses import dataclass
from enum import IntEnum
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from dpcanary.core.argument_checks import checked_real
from dpcanary.core.randomness import generator
from dpcanary.errors import InputError

Array = NDArray[np.float64]


class Purpose(IntEnum):
    """Part of the key of every stream. Never change or reuse a number, in any package."""

    EXPONENTIALS = 26  # exponential variables beside privacy losses


@dataclass(frozen=True)
class SimulatedEpsilon:
    """The epsilon of a process whose log-likelihood ratios are known and drawn, at one delta.

    Attributes:
        lower: at most the true epsilon, with confidence 1 - significance. At least 0.
        estimate: the quantile of the draws.
        upper: at least the true epsilon, with confidence 1 - significance; infinite if there are
            too few draws.
    """

    lower: float
    estimate: float
    upper: float


def simulate_epsilon(
    world0: ArrayLike, world1: ArrayLike, *, delta: float, significance: float = 0.05, seed: int = 0
) -> SimulatedEpsilon:
    """Epsilon of world 0 against world 1, both ways, from exact log-likelihood ratios.

    For a ratio L that is drawn in world 0, delta(epsilon) = E[(1 - exp(epsilon - L))+] is the
    probability that L - X exceeds epsilon, where X is exponential with mean 1 and independent. So
    epsilon is the upper delta-quantile of L - X, and order statistics of its draws bound it without
    an assumption. The other way, it is that of -L drawn in world 1; the larger one counts.

    Ratios must be those of the very distributions that they are drawn from: this is not for scores
    of an attack. Each of the two bounds holds by itself.

    Args:
        world0: log-likelihood ratios of world 0 to world 1, drawn in world 0, shape (draws,).
        world1: the same ratios, drawn in world 1, shape (draws,).
        delta: between 0 and 1, both excluded. With fewer than about 4 / delta draws, the upper
            bound is infinite.
        significance: probability that a bound is wrong.
        seed: of the exponential variables.

    Raises:
        InputError: an argument is out of its range, or a ratio is NaN.

    Example:
        >>> import numpy as np
        >>> normal = np.random.default_rng(1).standard_normal((2, 200_000))
        >>> bounds = simulate_epsilon(0.5 + normal[0], normal[1] - 0.5, delta=0.01)
        >>> round(bounds.estimate, 2)  # N(1, 1) against N(0, 1): 2.32 by `gdp_epsilon`
        2.33
    """
    delta = checked_real("delta", delta, most=1.0)
    level = checked_real("significance", significance, most=1.0) / 2
    stream = generator(seed=seed, purpose=Purpose.EXPONENTIALS)
    both = [
        _of_direction(_checked(losses, world), delta, level, stream)
        for losses, world in ((world0, 0), (-np.asarray(world1, dtype=np.float64), 1))
    ]
    return SimulatedEpsilon(*(max(0.0, *ends) for ends in zip(*both, strict=True)))


def _checked(losses: ArrayLike, world: int) -> Array:
    checked = np.asarray(losses, dtype=np.float64)
    if checked.ndim != 1 or not len(checked):
        raise InputError(
            f"world{world} has shape {checked.shape}; it must hold a ratio for each draw"
        )
    if np.isnan(checked).any():
        raise InputError(f"world{world}: ratio {int(np.argmax(np.isnan(checked)))} is NaN")
    return checked


def _of_direction(
    losses: Array, delta: float, level: float, stream: np.random.Generator
) -> tuple[float, float, float]:
    """Lower bound, estimate and upper bound of one order of the worlds, each bound at `level`."""
    count = len(losses)
    falling = np.sort(losses - stream.standard_exponential(count))[::-1]
    # So many draws or more exceed epsilon with probability `level` at most; so many or fewer, too.
    many, few = int(binom.isf(level, count, delta)) + 1, int(binom.ppf(level, count, delta)) - 1
    middle = min(int(count * delta), count - 1)
    lower = float(falling[many - 1]) if many <= count else -inf
    upper = float(falling[few]) if few >= 0 else inf
    return lower, float(falling[middle]), upper
