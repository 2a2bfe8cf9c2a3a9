"""A heuristic for a released last model: what it would reveal of a record if losses were linear.

Steinke et al., "The Last Iterate Advantage: Empirical Auditing and Principled Heuristic Analysis of
Differentially Private SGD" (ICLR 2025, arXiv:2410.06186).
"""

from collections.abc import Callable
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri
from scipy.stats import binom

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.log_sums import log_sums
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

    It does not rise with every step, as what accountants return does: where a record is in few
    batches, the noise of the steps without it hides it.

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
    checked_real("noise_multiplier", mechanism.noise_multiplier)  # it may not have been given
    delta = checked_real("delta", delta, most=1.0)
    if delta < LEAST_DELTA:
        raise InputError(f"delta is {delta:g}; the heuristic needs at least {LEAST_DELTA:g}")
    most = mechanism.num_steps
    uses = most if num_insertions is None else checked_count("num_insertions", num_insertions)
    if uses > most:
        raise InputError(f"num_insertions is {uses}, and there are {most} steps")
    counts = np.arange(uses + 1)
    masses = binom.logpmf(counts, uses, mechanism.sample_rate)
    kept = masses > _LEAST_LOG_MASS
    distances = counts[kept] / (mechanism.noise_multiplier * sqrt(most))  # in units of s
    # The other order of the worlds is the mirror image, which is the same under substitute.
    orders = [(distances, -distances)]
    if mechanism.adjacency is not Adjacency.SUBSTITUTE:
        none = np.zeros_like(distances)
        orders = [(distances, none), (none, -distances)]
    return max(_epsilon(masses[kept], *order, delta) for order in orders)


def _epsilon(masses: Array, first: Array, second: Array, delta: float) -> float:
    """Epsilon of one mixture of unit Gaussians against another, whose places are lower.

    Args:
        masses: log-probabilities of the places of both, shape (counts,).
        first: places of the first mixture, shape (counts,).
        second: places of the second one, shape (counts,).
        delta: at which.
    """

    def loss(y: float) -> float:
        logs = (log_sums(masses + y * mean - mean**2 / 2) for mean in (first, second))
        return float(next(logs) - next(logs))

    def excess(y: float) -> float:
        above = (_log_mass(masses, mean - y) for mean in (first, second))
        return exp(next(above)) - exp(loss(y) + next(above)) - delta

    # Where both are equally likely, and the loss is 0.
    middle = _root(loss, float(second.min()), float(first.max()))
    if excess(middle) <= 0:
        return 0.0
    return max(0.0, loss(_root(excess, middle, float(first.max()) + _reach(delta))))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-13, rtol=1e-13))


def _log_mass(masses: Array, distances: Array) -> float:
    """The log-probability of a mixture of unit Gaussians at distances from a threshold."""
    return float(log_sums(masses + log_ndtr(distances)))


def _reach(delta: float) -> float:
    """Standard deviations beyond which a Gaussian has less than delta."""
    return 1.0 - float(ndtri(delta / 2))
