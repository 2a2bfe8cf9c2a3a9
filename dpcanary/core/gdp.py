"""Gaussian differential privacy in closed form.

A mechanism is mu-GDP if telling its two worlds apart is at least as hard as telling N(0, 1) from
N(mu, 1) [Dong, Roth and Su, 2022]. This module has few imports, so that it loads fast.
"""

from collections.abc import Callable
from math import exp, expm1, inf, isfinite, log

from scipy.special import log_ndtr

from dpcanary.errors import InputError

# Above this mu, terms of `_log_delta` cancel, and the bracket's end is within 1e-6 of epsilon.
_LARGE_MU = 1e7


def gdp_delta(*, mu: float, epsilon: float) -> float:
    """Smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    Args:
        mu: the Gaussian privacy parameter, at least 0; may be infinite.
        epsilon: any finite number; may be negative.

    Returns:
        Phi(-eps/mu + mu/2) - exp(eps) Phi(-eps/mu - mu/2), computed in logs to keep its relative
        precision in the tail.

    Raises:
        InputError: mu is negative or NaN, or epsilon is not finite.

    Example:
        >>> round(gdp_delta(mu=1.0, epsilon=0.0), 6)
        0.382925
    """
    _check_mu(mu)
    if not isfinite(epsilon):
        raise InputError(f"epsilon is {epsilon!r}; it must be finite")
    if mu == 0:
        return max(0.0, -expm1(epsilon))
    return 1.0 if mu == inf else exp(_log_delta(mu, epsilon))


def gdp_epsilon(*, mu: float, delta: float) -> float:
    """Smallest epsilon for which mu-GDP implies (epsilon, delta)-DP.

    Args:
        mu: the Gaussian privacy parameter, at least 0; may be infinite.
        delta: between 0 and 1, both excluded.

    Returns:
        Exactly 0.0 where delta alone covers the leak, infinity at infinite mu.

    Raises:
        InputError: mu is negative or NaN, or delta is not between 0 and 1.

    Example:
        >>> round(gdp_epsilon(mu=2.0, delta=1e-5), 3)
        9.997
    """
    _check_mu(mu)
    _check_delta(delta)
    if mu == inf:
        return inf
    if mu == 0 or gdp_delta(mu=mu, epsilon=0.0) <= delta:
        return 0.0
    # delta(eps) < Phi(mu/2 - eps/mu) < exp(-(eps/mu - mu/2)^2 / 2) closes the bracket.
    highest: float = mu * (mu / 2 + (-2 * log(delta)) ** 0.5)
    if mu > _LARGE_MU:
        return highest
    return _root(lambda epsilon: _log_delta(mu, epsilon) - log(delta), 0.0, highest)


def gdp_mu(*, epsilon: float, delta: float) -> float:
    """Largest mu for which mu-GDP implies (epsilon, delta)-DP.

    Args:
        epsilon: at least 0; may be infinite.
        delta: between 0 and 1, both excluded.

    Returns:
        The inverse of gdp_epsilon in mu. At epsilon 0 it is the largest mu that delta alone
        covers, which is above 0.

    Raises:
        InputError: epsilon is negative or NaN, or delta is not between 0 and 1.

    Example:
        >>> round(gdp_mu(epsilon=9.998, delta=1e-5), 3)
        2.0
    """
    _check_delta(delta)
    if not epsilon >= 0:
        raise InputError(f"epsilon is {epsilon!r}; it must be at least 0")
    if epsilon == inf:
        return inf
    # delta(mu) goes to 0 towards mu = 0 (at epsilon >= 0) and to 1 as mu grows.
    low = high = 1.0
    while gdp_delta(mu=low, epsilon=epsilon) > delta:
        low /= 2
    while gdp_delta(mu=high, epsilon=epsilon) < delta:
        high *= 2
    return _root(lambda mu: gdp_delta(mu=mu, epsilon=epsilon) - delta, low, high)


def _log_delta(mu: float, epsilon: float) -> float:
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    gap = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)) - first
    # Far in the tail the two terms agree to rounding, and the difference is 0 to rounding.
    return first + log(-expm1(gap)) if gap < 0 else -inf


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq  # takes long to import, and most jobs need no root

    return float(brentq(function, low, high, xtol=1e-14, rtol=1e-13))


def _check_mu(mu: float) -> None:
    if not mu >= 0:
        raise InputError(f"mu is {mu!r}; it must be at least 0")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError(f"delta is {delta!r}; it must be between 0 and 1, both excluded")
