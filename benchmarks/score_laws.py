"""Distributions of scores whose true privacy is known."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpcanary.accounting.exact_trade_off import trade_off_curve
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.estimation import Conversion

Scores = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Scores, Scores]]

DELTA = 1e-5
# The grid of privacy losses: 2^20 cells around 0.
_CELL, _CELLS = 1e-4, 2**20
# Sums of losses are drawn from every tenth point of their distribution.
_THIN = 10


@dataclass(frozen=True)
class Law:
    """Scores of two worlds, and what no valid bound may exceed.

    Attributes:
        name: for tables.
        draw: (generator, scores per world) -> scores of world 0 and world 1.
        truth: mu if the conversion is `gdp` and the scores satisfy G_mu, else epsilon.
        conversion: among which curves the bound looks.
        mechanism: whose epsilon is the truth.
        is_mu: whether the truth is a mu.
        must_hold: whether the conversion's assumption is true of the scores.
    """

    name: str
    draw: Draw
    truth: float
    conversion: Conversion = Conversion.GDP
    mechanism: Mechanism | None = None
    is_mu: bool = True
    must_hold: bool = True


def _gaussian(mu: float, sd: float, rng: np.random.Generator, n: int) -> tuple[Scores, Scores]:
    return rng.normal(mu, sd, n), rng.normal(0.0, 1.0, n)


def _clipped(rng: np.random.Generator, n: int) -> tuple[Scores, Scores]:
    first, second = _gaussian(1.0, 2.0, rng, n)
    return np.clip(first, -3, 3), np.clip(second, -3, 3)


def _binary(threshold: float, rng: np.random.Generator, n: int) -> tuple[Scores, Scores]:
    first, second = _gaussian(2.0, 1.0, rng, n)
    return (first >= threshold).astype(float), (second >= threshold).astype(float)


def _rounded(rng: np.random.Generator, n: int) -> tuple[Scores, Scores]:
    first, second = _gaussian(1.0, 1.0, rng, n)
    return np.round(first), np.round(second)


def _laplace(rng: np.random.Generator, n: int) -> tuple[Scores, Scores]:
    return rng.laplace(1.0, 1.0, n), rng.laplace(0.0, 1.0, n)


def _response(epsilon: float, rng: np.random.Generator, n: int) -> tuple[Scores, Scores]:
    """Randomised response."""
    lie = 1 / (1 + np.exp(epsilon))
    return (rng.random(n) >= lie).astype(float), (rng.random(n) < lie).astype(float)


def _direct_pair(epsilon: float, rng: np.random.Generator, n: int) -> tuple[Scores, Scores]:
    """Scores whose trade-off curve is that of (epsilon, DELTA)-DP."""
    fpr = rng.random(n)
    steep = 1 - DELTA - np.exp(epsilon) * fpr
    flat = np.exp(-epsilon) * (1 - DELTA - fpr)
    return rng.random(n), np.maximum(np.maximum(steep, flat), -1.0)


def _sums(mechanism: Mechanism, rng: np.random.Generator, n: int) -> tuple[Scores, Scores]:
    """Final sums of the worst-case pair; their likelihood ratio rises with the sum."""
    steps, q = mechanism.num_steps, mechanism.sample_rate
    noise = mechanism.noise_multiplier * steps**0.5
    first, second = (rng.binomial(steps, q, n) + noise * rng.standard_normal(n) for _ in range(2))
    return first, -second


def _transcripts(mechanism: Mechanism, rng: np.random.Generator, n: int) -> tuple[Scores, Scores]:
    """Log-likelihood ratios of all noisy sums of the worst-case pair, which is symmetric."""
    losses, shares = _loss_distribution(mechanism)
    first, second = (np.interp(rng.random(n), shares, losses) for _ in range(2))
    return first, -second


@lru_cache(maxsize=4)
def _loss_distribution(mechanism: Mechanism) -> tuple[Scores, Scores]:
    """The distribution function of the sum of all steps' losses under world 0.

    A step's loss rises with its noisy sum, so the probability of a cell of losses is that of an
    interval of sums. The Fourier transform composes the steps. No accountant is used.
    """
    q, s = mechanism.sample_rate, mechanism.noise_multiplier
    half = _CELLS // 2
    edges = _CELL * (np.arange(-half, half + 1) - 0.5)
    y = np.linspace(-1 - 12 * s, 1 + 12 * s, 2**20 + 1)
    plus, minus = (np.logaddexp(np.log1p(-q), np.log(q) + (v - 0.5) / s**2) for v in (y, -y))
    at = np.interp(edges, plus - minus, y)
    lower = np.diff((1 - q) * ndtr(at / s) + q * ndtr((at - 1) / s))
    step = np.fft.rfft(np.fft.ifftshift(lower))
    sums = np.fft.fftshift(np.fft.irfft(step**mechanism.num_steps, _CELLS))
    shares = np.cumsum(np.maximum(sums, 0.0))[::_THIN]
    shares /= shares[-1]
    seen = (shares > 1e-13) & (shares < 1 - 1e-13)
    return edges[1::_THIN][seen], shares[seen]


def _largest_mu(fpr: Scores, fnr: Scores) -> float:
    """The smallest mu for which no threshold is better than G_mu allows."""
    return float(np.max(-ndtri(fpr) - ndtri(fnr)))


@cache
def laws() -> dict[str, Law]:
    """All laws by name."""
    clip = np.linspace(-3, 3, 6001)
    shifts = np.linspace(-20, 20, 40_001)
    laplace = (0.5 * np.exp(-np.abs(v)) for v in (shifts, shifts - 1))
    low, high = laplace
    all_laws = [
        *(
            Law(f"Gaussian, mu {mu:g}", partial(_gaussian, mu, 1.0), mu)
            for mu in (0.0, 0.5, 1.0, 2.0, 4.0)
        ),
        # Unclipped, thresholds far out would tell the worlds apart with an unbounded mu.
        Law(
            "N(1, 4) against N(0, 1), clipped at 3",
            _clipped,
            _largest_mu(ndtr(-clip), ndtr((clip - 1) / 2)),
        ),
        Law("binary, mu 2 cut at 1", partial(_binary, 1.0), 2.0),
        Law("binary, mu 2 cut at 2.5", partial(_binary, 2.5), 2.0),
        Law("Gaussian, mu 1, rounded to integers", _rounded, 1.0),
        Law(
            "Laplace, shift 1",
            _laplace,
            _largest_mu(np.where(shifts > 0, low, 1 - low), np.where(shifts > 1, 1 - high, high)),
        ),
        *_subsampled_laws(),
        *(
            Law(
                f"randomised response, epsilon {epsilon:g}",
                partial(_response, epsilon),
                epsilon,
                Conversion.DIRECT,
                is_mu=False,
            )
            for epsilon in (1.0, 2.5)
        ),
        Law(
            "least favourable pair, epsilon 2.5",
            partial(_direct_pair, 2.5),
            2.5,
            Conversion.DIRECT,
            is_mu=False,
        ),
        Law(
            "Gaussian, mu 1, direct",
            partial(_gaussian, 1.0, 1.0),
            gdp_epsilon(mu=1.0, delta=DELTA),
            Conversion.DIRECT,
            is_mu=False,
        ),
    ]
    return {law.name: law for law in all_laws}


def _subsampled_laws() -> list[Law]:
    often = Mechanism("substitute", sample_rate=0.0625, noise_multiplier=3.0174, num_steps=500)
    seldom = Mechanism("substitute", sample_rate=0.01, noise_multiplier=0.7, num_steps=500)
    cases = [
        ("transcript", often, _transcripts, Conversion.SUBSAMPLED_GAUSSIAN),
        ("final sum", often, _sums, Conversion.SUBSAMPLED_GAUSSIAN),
        ("transcript", seldom, _transcripts, Conversion.SUBSAMPLED_GAUSSIAN),
        ("transcript", often, _transcripts, Conversion.GDP),
        ("final sum", often, _sums, Conversion.GDP),
        ("transcript", seldom, _transcripts, Conversion.GDP),
    ]
    return [
        Law(
            f"{what}, q {mechanism.sample_rate:g}, {conversion}",
            partial(draw, mechanism),
            trade_off_curve(mechanism).epsilon(DELTA),
            conversion,
            mechanism,
            is_mu=False,
            must_hold=conversion is Conversion.SUBSAMPLED_GAUSSIAN,
        )
        for what, mechanism, draw, conversion in cases
    ]
