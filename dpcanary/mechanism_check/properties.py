"""Measured values of each property, and how unlikely they are if it holds."""

from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, chi2, f, normaltest

from dpcanary.mechanism_check.measurements import Array, Measurements
from dpcanary.mechanism_check.purposes import Purpose
from dpcanary.randomness import generator

# Relative deviations of what is not random; single precision has 1e-7, small updates less.
_EXACT = 1e-3
# Of batch sizes: enough for p-values far below the level of one property.
_BLOCKS, _SIMULATIONS_AT_ONCE = 10, 10_000
# Parts are in units of a gradient's norm; the least of these is 1e-2.
_PRESENT = 1e-4


def _participation(parts: Array) -> NDArray[np.bool_]:
    """Which records were in a batch: the others have parts of 0, or of next to no noise."""
    return parts > _PRESENT


def _usual_part(parts: Array) -> float:
    """The median part of records in a batch; 1 if there is none."""
    present = parts[_participation(parts)]
    return float(np.median(present)) if present.size else 1.0


def sampling_rate(found: Measurements, sample_rate: float) -> tuple[str, float]:
    """The share of records that are in a batch, among binomial numbers."""
    drawn = _participation(found.parts)
    test = binomtest(int(drawn.sum()), drawn.size, sample_rate)
    return f"{drawn.mean():.4f} of {sample_rate:g}", float(test.pvalue)


def batch_sizes(found: Measurements, sample_rate: float) -> tuple[str, float]:
    """Squared deviations of the sizes, among those of simulated binomial numbers."""
    sizes, count = _participation(found.parts).sum(axis=1), found.parts.shape[1]
    deviation = sqrt(count * sample_rate * (1 - sample_rate))
    text = f"standard deviation {sizes.std():.2f} of {deviation:.2f}"

    def squares(drawn: NDArray[np.int64]) -> Array:
        total: Array = ((drawn - count * sample_rate) ** 2).sum(axis=-1)
        return total

    stream, own = generator(seed=0, purpose=Purpose.BATCH_SIZES), float(squares(sizes))
    below = above = 1  # itself (Barnard, 1963)
    for _ in range(_BLOCKS):
        drawn = stream.binomial(count, sample_rate, (_SIMULATIONS_AT_ONCE, len(sizes)))
        simulated = squares(drawn)
        below += int((simulated <= own).sum())
        above += int((simulated >= own).sum())
    return text, min(1.0, 2 * min(below, above) / (_BLOCKS * _SIMULATIONS_AT_ONCE + 1))


def both_steps(found: Measurements, sample_rate: float) -> tuple[str, float]:
    """Of clipped records, whose parts add up to about 0, 1 or 2 of the usual part."""
    clipped = found.parts[:, 0::2]
    both = found.parts_of_two[:, 0::2] > 1.5 * _usual_part(clipped)
    test = binomtest(int(both.sum()), both.size, sample_rate**2)
    return f"{both.mean():.5f} of {sample_rate**2:.5f}", float(test.pvalue)


def normalisation(found: Measurements, sample_rate: float) -> tuple[str, float]:
    """Of records that are not clipped."""
    return _exact(found.parts[:, 1::2], found.norms[1::2])


def clipping(found: Measurements, sample_rate: float) -> tuple[str, float]:
    """Of clipped records, over those that are not clipped: normalisation does not matter then."""
    large, small = found.parts[:, 0::2], found.parts[:, 1::2] / found.norms[1::2]
    own = np.array([_usual_part(row) for row in small])
    return _exact(large / own[:, None], np.ones(large.shape[1]))


def _exact(parts: Array, expected: Array) -> tuple[str, float]:
    ratios = (parts / expected)[parts > _PRESENT]
    if not ratios.size:
        return "no record was in any batch", 0.0
    low, high = float(ratios.min()), float(ratios.max())
    text = f"{low:.4g}" if high - low < _EXACT * low else f"{low:.4g} to {high:.4g}"
    return f"{text} times as much", float(max(abs(low - 1), abs(high - 1)) < _EXACT)


def noise_scale(found: Measurements, sample_rate: float) -> tuple[str, float]:
    """The sum of squares of one step's noise is chi-squared."""
    squares, size = float((found.noise**2).sum()), found.noise.size
    p_value = _two_sided(chi2(size).cdf(squares), chi2(size).sf(squares))
    return f"{sqrt(squares / size):.4g} times as much", p_value


def constant_noise(found: Measurements, sample_rate: float) -> tuple[str, float]:
    """Sums of squares of trainings are about normal with variance twice their degrees."""
    sums, width = (found.noise**2).sum(axis=1), found.noise.shape[1]
    mean = sums.mean()
    if mean == 0:
        return "no noise", 0.0
    dispersion = float(((sums - mean) ** 2).sum() / (2 * width * (mean / width) ** 2))
    scales = np.sqrt(sums / width)
    return f"scales from {scales.min():.3g} to {scales.max():.3g}", float(
        chi2(len(sums) - 1).sf(dispersion)
    )


def gaussian(found: Measurements) -> tuple[str, float]:
    """Skewness and kurtosis of the noise (D'Agostino and Pearson)."""
    flat = found.noise.ravel()
    if not flat.any():
        return "no noise", 0.0
    centred = (flat - flat.mean()) / flat.std()
    text = f"skewness {np.mean(centred**3):.3f}, excess kurtosis {np.mean(centred**4) - 3:.3f}"
    return text, float(normaltest(flat).pvalue)


def independent_steps(found: Measurements, sample_rate: float) -> tuple[str, float]:
    """The ratio of the variances after two steps and one, which has an F distribution."""
    one, two = (float((noise**2).mean()) for noise in (found.noise, found.noise_of_two))
    if one == 0:
        return "no noise", 0.0
    law = f(found.noise_of_two.size, found.noise.size)
    ratio = two / one
    return f"{ratio:.3f} times the variance", _two_sided(law.cdf(ratio / 2), law.sf(ratio / 2))


def independent_coordinates(found: Measurements) -> tuple[str, float]:
    """Sums over trainings and over parameters have the variances of independent numbers."""
    noise, variance = found.noise, float((found.noise**2).mean())
    if variance == 0:
        return "no noise", 0.0
    num_trainings, width = noise.shape
    over_trainings = float((noise.sum(axis=0) ** 2).sum() / (num_trainings * variance))
    over_parameters = float((noise.sum(axis=1) ** 2).sum() / (width * variance))
    p_values = chi2(width).sf(over_trainings), chi2(num_trainings).sf(over_parameters)
    text = (
        f"variances of sums {over_trainings / width:.2f} and"
        f" {over_parameters / num_trainings:.2f} of 1"
    )
    return text, float(min(1.0, 2 * min(p_values)))


def _two_sided(below: float, above: float) -> float:
    return float(min(1.0, 2 * min(below, above)))
