"""Where delta alone covers a training, so that its epsilon is exactly 0.

A mechanism is (0, delta)-DP if the total variation distance of its two output distributions is at
most delta. Accountants round losses up, and state a small epsilon above 0 there.
"""

from collections.abc import Sequence
from math import erf, expm1, inf, log, log1p, sinh, sqrt

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.adjacency import Adjacency

# Relative error of the formulas in double precision, and a margin.
_ROUND_OFF = 1e-12
# From this exponent on, the bound by divergences is above 1 and says nothing.
_LARGEST_EXPONENT = log(5.0)
# The largest exponent 1 / sigma^2 whose exponential is a double.
_OVERFLOW = 700.0


def is_within_delta(mechanisms: Sequence[Mechanism], *, delta: float) -> bool:
    """Whether mechanisms that run one after another are (0, delta)-DP, by what is known.

    Example:
        >>> mechanism = Mechanism("substitute", sample_rate=1e-4, num_steps=1, noise_multiplier=2.0)
        >>> is_within_delta([mechanism], delta=4e-5)  # 1e-4 (2 Phi(1/2) - 1) = 3.8e-5
        True
    """
    return total_variation_bound(mechanisms) <= delta


def total_variation_bound(mechanisms: Sequence[Mechanism]) -> float:
    """An upper bound on the total variation distance of the dominating pairs of all steps.

    It is the smallest of three. (1) Distances of steps add up, and sampling multiplies that of a
    step's Gaussians by the sample rate. (2) Sampling is a post-processing of each step's Gaussians,
    and without it all steps are one Gaussian mechanism. (3) By Cauchy and Schwarz, the distance is
    at most half of the root of the chi-squared divergence, and one plus that of all steps is the
    product of one plus those of the steps.
    """
    squared_shift, summed, exponent = 0.0, 0.0, 0.0
    for mechanism in mechanisms:
        shift = mechanism.adjacency.sensitivity / mechanism.noise_multiplier
        steps, rate = mechanism.num_steps, mechanism.sample_rate
        squared_shift += steps * shift**2
        summed += steps * rate * _distance_of_gaussians(shift)
        exponent += steps * log1p(_chi_squared_bound(mechanism))
    by_divergence = sqrt(expm1(min(exponent, _LARGEST_EXPONENT))) / 2
    smallest = min(summed, _distance_of_gaussians(sqrt(squared_shift)), by_divergence)
    return smallest * (1 + _ROUND_OFF)


def _distance_of_gaussians(shift: float) -> float:
    """Total variation distance of N(0, 1) and N(shift, 1)."""
    return erf(shift / sqrt(8))


def _chi_squared_bound(mechanism: Mechanism) -> float:
    """The chi-squared divergence of one step, the mean of (p / r - 1)^2 under r, or an upper bound.

    Let f_m be the density of N(m, sigma^2). The mean of f_a f_b / f_0^2 under f_0 is
    exp(a b / sigma^2). Under add/remove, r = f_0 and p - r = q (f_1 - f_0). Under substitute,
    p - r = q (f_1 - f_-1), and r is at least (1 - q) f_0.
    """
    rate, inverse = mechanism.sample_rate, mechanism.noise_multiplier**-2
    if inverse > _OVERFLOW:
        return inf
    if mechanism.adjacency is not Adjacency.SUBSTITUTE:
        return rate**2 * expm1(inverse)
    return inf if rate == 1 else rate**2 / (1 - rate) * 4 * sinh(inverse)
