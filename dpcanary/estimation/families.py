"""Families of trade-off curves, each ordered by one parameter theta.

A mechanism satisfies a curve f if every test of world 1 against world 0 has FNR >= f(FPR). A bound
on theta says which curve of the family is the least that the mechanism can satisfy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpcanary.core.gdp import gdp_epsilon

Floats = NDArray[np.float64]

# The statistics of a pair of samples, in their order.
PUBLISHED_SCAN, STRICT_SCAN, AUC = range(3)

# The grid of normal quantiles on which curves are tabulated.
LOWEST, STEP, NUM_POINTS = -9.0, 0.005, 3601
# In place of a rate of 0, so that scores are finite: below all normals.
LEAST_RATE = 1e-300

GRID = LOWEST + STEP * np.arange(NUM_POINTS)


@dataclass(frozen=True)
class Family:
    """Trade-off curves f_theta that fall as theta rises from 0, where the worlds are alike.

    Attributes:
        name: names the family and its settings; cached results are found by it.
        curves: theta of shape (G,) -> shape (G, NUM_POINTS): Phi^-1(f_theta(Phi(-z))) for z on
            `GRID`. Scores with this law in world 1, for z from N(0, 1), and with N(0, 1) in world 0
            have the trade-off curve f_theta.
        assumption: what must hold of the mechanism so that a bound on theta is valid.
        strength: (fpr, fnr) -> the least theta with f_theta(fpr) <= fnr; negative or -inf if
            every curve allows this.
        epsilon: (theta, delta) -> epsilon.
        strength_terms: (fpr_upper, fnr_upper) -> four arrays (a, b, c, d) of the shapes given:
            a scan ranks the pair (i, j) of bounds by max(a[i] + b[j], c[i] + d[j]), which falls
            with both bounds.
        combined: the statistics that rule `combined` takes the larger of.
        is_mu: whether theta is the mu of Gaussian differential privacy.
        largest: no theta beyond this has a curve.
        delta: of (epsilon, delta), where theta is the epsilon.
        is_symmetric: whether the curves are their own inverses, so that both worlds are alike.
    """

    name: str
    assumption: str
    curves: Callable[[Floats], Floats]
    strength: Callable[[Floats, Floats], Floats]
    epsilon: Callable[[float, float], float]
    strength_terms: Callable[[Floats, Floats], tuple[Floats, Floats, Floats, Floats]]
    combined: tuple[int, ...] = (STRICT_SCAN, AUC)
    is_mu: bool = False
    largest: float = np.inf
    delta: float | None = None
    is_symmetric: bool = True


def gaussian_terms(fpr: Floats, fnr: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Terms of -Phi^-1(fpr) - Phi^-1(fnr), the mu of both error rates."""
    return -ndtri(fpr), -ndtri(fnr), np.full_like(fpr, -np.inf), np.full_like(fnr, -np.inf)


GDP = Family(
    name="gdp",
    assumption=(
        "the mechanism's trade-off curve is Gaussian (mu-GDP): exact for DP-SGD at sample_rate 1, a"
        " central-limit approximation below"
    ),
    curves=lambda theta: GRID - theta[:, None],
    strength=lambda fpr, fnr: -ndtri(fpr) - ndtri(fnr),
    epsilon=lambda theta, delta: gdp_epsilon(mu=theta, delta=delta),
    strength_terms=gaussian_terms,
    is_mu=True,
)


@lru_cache(maxsize=16)
def direct_family(delta: float) -> Family:
    """The curves of (epsilon, delta)-DP, with theta = epsilon (Kairouz et al., 2015)."""

    def curves(theta: Floats) -> Floats:
        fpr, epsilon = ndtr(-GRID), theta[:, None]
        with np.errstate(over="ignore"):  # a term of -inf is not the larger one
            below = 1 - delta - np.exp(epsilon) * fpr
        fnr = np.maximum(below, np.exp(-epsilon) * (1 - delta - fpr))
        return np.asarray(ndtri(np.maximum(fnr, LEAST_RATE)))

    def terms(fpr: Floats, fnr: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        with np.errstate(divide="ignore"):
            rest_fpr, rest_fnr = (np.log(np.maximum(1 - delta - rate, 0.0)) for rate in (fpr, fnr))
            return rest_fpr, -np.log(fnr), -np.log(fpr), rest_fnr

    def strength(fpr: Floats, fnr: Floats) -> Floats:
        rest_fpr, minus_fnr, minus_fpr, rest_fnr = terms(fpr, fnr)
        return np.maximum(rest_fpr + minus_fnr, minus_fpr + rest_fnr)

    return Family(
        name=f"direct delta={delta!r}",
        assumption="nothing of the mechanism but the definition of (epsilon, delta)-DP",
        curves=curves,
        strength=strength,
        epsilon=lambda theta, delta: theta,
        strength_terms=terms,
        combined=(PUBLISHED_SCAN, STRICT_SCAN),
        delta=delta,
    )
