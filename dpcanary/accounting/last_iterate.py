"""A heuristic for a released last model: what it would reveal of a record if losses were linear.

Steinke et al., "The Last Iterate Advantage: Empirical Auditing and Principled Heuristic Analysis of
Differentially Private SGD" (ICLR 2025, arXiv:2410.06186).
"""

from collections.abc import Callable
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp, ndtri
from scipy.stats import binom

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.adjacency import Adjacency
from dpcanary.checks import checked_count, checked_real
from dpcanary.errors import InputError

Array = NDArray[np.float64]

LEAST_DELTA = 1e-12  # below it, rounding would show
# Numbers of batches that are less likely than exp of this are left out.
_LEAST_LOG_MASS = -700.0


def heuristic_epsilon(
    mechanism: Mechanism, *, delta: float, num_insertions: int | None = None
) -> float:
    """The epsilon of the last model under linear losses. It is NOT an upper bound for other losses.

    With linear losses and plain SGD at a constant learning rate, gradients do not depend on the
    model. The last model is then the sum of all steps: in units of the clipping norm C, a record
    of gradient norm C moves it by the number of its batches, which is binomial, and the noise of T
    steps has the standard deviation s = noise_multiplier sqrt(T). So the worlds are
    Binomial(T, q) + N(0, s^2) against N(0, s^2) under add/remove and zero-out adjacency, both ways,
    as the paper has it. Under substitute adjacency, which it does not treat, the worst pair of
    records has opposite gradients: Binomial(T, q) + N(0, s^2) against -Binomial(T, q) + N(0, s^2).

    The likelihood ratio of each pair rises with the position, so that the best tests are thresholds
    and the result is exact but for rounding.

    Args:
        mechanism: adjacency, sample rate, steps and noise of the training.
        delta: between 1e-12 and 1.
        num_insertions: the number of steps that may use the record, where it is not all of them.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> training = Mechanism("add_remove", sample_rate=0.01, num_steps=100,
        ...                      noise_multiplier=0.5)
        >>> round(heuristic_epsilon(training, delta=1e-5), 2)  # accounted: 6.48
        1.09
    """
    delta = checked_real("delta", delta, most=1.0)
    if delta < LEAST_DELTA:
        raise InputError(f"delta is {delta:g}; the heuristic needs at least {LEAST_DELTA:g}")
    most = mechanism.num_steps
    uses = most if num_insertions is None else checked_count("num_insertions", num_insertions)
    if uses > most:
        raise InputError(f"num_insertions is {uses}, and there are {most} steps")
    pair = _Pair(mechanism, uses)
    return max(0.0, pair.of_world0(delta), pair.of_world1(delta))


class _Pair:
    """The distributions of the last model's position along the record's gradient, in units of s."""

    def __init__(self, mechanism: Mechanism, num_insertions: int) -> None:
        noise = mechanism.noise_multiplier * sqrt(mechanism.num_steps)
        counts = np.arange(num_insertions + 1)
        masses = binom.logpmf(counts, num_insertions, mechanism.sample_rate)
        kept = masses > _LEAST_LOG_MASS
        self._masses: Array = masses[kept]
        self._world0: Array = counts[kept] / noise
        is_substitute = mechanism.adjacency is Adjacency.SUBSTITUTE
        self._world1: Array = -self._world0 if is_substitute else np.zeros_like(self._world0)
        # Where both worlds are equally likely.
        self._middle = 0.0 if is_substitute else _root(self._loss, 0.0, float(self._world0[-1]))

    def of_world0(self, delta: float) -> float:
        """Epsilon of world 0 against world 1."""

        def excess(y: float) -> float:
            above0, above1 = (_log_mass(self._masses, one - y) for one in self._worlds)
            return exp(above0) - exp(self._loss(y) + above1) - delta

        if excess(self._middle) <= 0:
            return 0.0
        return self._loss(_root(excess, self._middle, float(self._world0[-1]) + _reach(delta)))

    def of_world1(self, delta: float) -> float:
        """Epsilon of world 1 against world 0."""

        def excess(y: float) -> float:
            below0, below1 = (_log_mass(self._masses, y - one) for one in self._worlds)
            return exp(below1) - exp(below0 - self._loss(y)) - delta

        if excess(self._middle) <= 0:
            return 0.0
        return -self._loss(_root(excess, float(self._world1[-1]) - _reach(delta), self._middle))

    @property
    def _worlds(self) -> tuple[Array, Array]:
        return self._world0, self._world1

    def _loss(self, y: float) -> float:
        """The log-likelihood ratio of world 0 to world 1 at a position."""
        log0, log1 = (logsumexp(self._masses + y * one - one**2 / 2) for one in self._worlds)
        return float(log0 - log1)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-13, rtol=1e-13))


def _log_mass(masses: Array, distances: Array) -> float:
    """The log-probability of a mixture of unit Gaussians at distances from a threshold."""
    return float(logsumexp(masses + log_ndtr(distances)))


def _reach(delta: float) -> float:
    """Standard deviations beyond which a Gaussian has less than delta."""
    return 1.0 - float(ndtri(delta / 2))
