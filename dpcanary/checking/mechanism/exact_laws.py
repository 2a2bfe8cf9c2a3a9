"""P-values from exact laws of what is measured, if the mechanism is right."""

from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import beta, binom, chi2, norm
from scipy.stats import t as student

Array = NDArray[np.float64]
# Standard deviations above the mean beyond which the law of squares is not computed.
_FAR = 20


def two_sided(below: Array | float, above: Array | float) -> Array:
    """P-values of values, from the probabilities of no larger and of no smaller ones."""
    p_values: Array = np.clip(2 * np.minimum(below, above), 0.0, 1.0)
    return p_values


def least(p_values: Array, count: int | None = None) -> tuple[int, float]:
    """The index of the least p-value, and this times their number (Bonferroni).

    Args:
        p_values: shape (m,), at least one.
        count: of tests, if p-values stand for several.
    """
    index = int(np.argmin(p_values))
    return index, float(min(1.0, (count or p_values.size) * p_values[index]))


def disjoint_pairs(count: int, distance: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs of the numbers below a count that are so far apart, and share none; shape (pairs,)."""
    starts = np.arange(0, count - 2 * distance + 1, 2 * distance)
    first = (starts[:, None] + np.arange(distance)).ravel()
    return first, first + distance


def binomial_p_values(
    counts: NDArray[np.int64] | int, trials: int | Array, rates: Array | float
) -> Array:
    """P-values of binomial numbers, each on its own."""
    law = binom(trials, rates)
    return two_sided(law.cdf(counts), law.sf(np.asarray(counts) - 1))


def spread_p_value(counts: NDArray[np.int64], trials: int, rate: float) -> float:
    """The p-value of the spread of independent binomial numbers around their mean, by an exact law.

    The statistic is the sum of their squared differences from the mean, rounded to a whole number.
    The law of the sum is the law of one square, convolved with itself.
    """
    centre, size = round(trials * rate), len(counts)
    mean = trials * rate * (1 - rate) + (trials * rate - centre) ** 2
    own = int(((counts - centre) ** 2).sum())
    # Beyond, the probability is that of the bound, which is larger: 20 deviations are enough.
    own = min(own, ceil(size * mean * (1 + _FAR * sqrt(2 / size))) + 1)
    values = np.arange(trials + 1)
    squares = (values - centre) ** 2
    near = squares <= own
    law = np.zeros(own + 1)
    np.add.at(law, squares[near], binom(trials, rate).pmf(values[near]))
    total = _of_sum(law, size)
    return float(two_sided(total.sum(), 1 - total[:own].sum()))


def _of_sum(law: Array, count: int) -> Array:
    """The law of a sum of independent numbers with the given law, up to the same largest value."""
    length, total = len(law), np.ones(1)
    while count:
        if count % 2:
            total = fftconvolve(total, law)[:length]
        law, count = fftconvolve(law, law)[:length], count // 2
    return total


def squares_p_values(values: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Root mean squares of standard normal numbers over some axes, and the p-values of these.

    The sums of squares are chi-squared.
    """
    squares = (values**2).sum(axis=axes)
    count = values.size // squares.size
    law = chi2(count)
    return np.sqrt(squares / count), two_sided(law.cdf(squares), law.sf(squares))


def squares_p_value(values: Array) -> float:
    """The p-value of the sum of squares of standard normal numbers."""
    return float(squares_p_values(values, tuple(range(values.ndim)))[1])


def constancy_p_value(values: Array) -> float:
    """The p-value of sums of squares of normal rows with one variance, which may be unknown.

    Rows are compared with those of their own group; shape (groups, rows, values).

    Each row's sum over that of it and all rows before is a beta number. These ratios are
    independent, because the sum of independent gamma numbers is independent of their ratio. As
    normal numbers, their squares add up to a chi-squared one: large if the variance differs between
    rows, small if the sums differ too little.
    """
    sums = (values**2).sum(axis=2)
    totals = np.cumsum(sums, axis=1)
    ratios = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)[:, 1:]
    half = values.shape[2] / 2
    law = beta(half, np.arange(1, values.shape[1]) * half)
    below, above = law.cdf(ratios), law.sf(ratios)
    normal = np.where(below < above, norm.ppf(below), norm.isf(above))
    spread, of_all = float((normal**2).sum()), chi2(ratios.size)
    return float(two_sided(of_all.cdf(spread), of_all.sf(spread)))


def variance_along(rows: Array, weights: Array) -> tuple[float, float]:
    """The variance of rows along a direction, over that of all their values; and its p-value.

    Of independent normal numbers, the part of the squares of all values that lies along it is a
    beta number, whatever their variance. It is small if noise was made to cancel along the
    direction, and large if noise is shared.

    Args:
        rows: shape (n, k).
        weights: the direction, shape (k,); for sums of values, all 1.
    """
    along = rows @ (weights / np.linalg.norm(weights))
    share = float((along**2).sum() / (rows**2).sum())
    law = beta(along.size / 2, (rows.size - along.size) / 2)
    return share * rows.shape[1], float(two_sided(law.cdf(share), law.sf(share)))


def variance_within(values: Array) -> tuple[float, float]:
    """The variance of sums of rows around the mean of their group, over that of all values.

    It is small if the rows of a group hold the same numbers in another order.

    Args:
        values: independent normal numbers, shape (groups, rows, values).

    Returns:
        The variance, and its p-value by the same law as that of `variance_along`.
    """
    groups, rows, count = values.shape
    along = values.sum(axis=2) / sqrt(count)
    within = along - along.mean(axis=1, keepdims=True)
    share, degrees = float((within**2).sum() / (values**2).sum()), groups * (rows - 1)
    law = beta(degrees / 2, (values.size - degrees) / 2)
    return share * values.size / degrees, float(two_sided(law.cdf(share), law.sf(share)))


def correlation(first: Array, second: Array) -> tuple[float, float]:
    """The correlation of two lists of normal numbers of mean 0, and its p-value.

    The square of the correlation is a beta number if one of the lists does not depend on the other.
    """
    lengths = sqrt((first**2).sum() * (second**2).sum())
    if lengths == 0:
        return 0.0, 1.0
    own = float((first * second).sum() / lengths)
    return own, float(beta(0.5, (first.size - 1) / 2).sf(min(1.0, own**2)))


def probabilities_of(values: Array) -> Array:
    """Normal numbers of mean 0 as independent uniform ones, whatever their variance.

    Each value over the root mean square of all before it has Student's distribution with as many
    degrees of freedom, and is independent of all before it. The first one, which nothing comes
    before, is left out.
    """
    degrees = np.arange(1, len(values))
    scales = np.sqrt(np.cumsum(values**2)[:-1] / degrees)
    ratios = np.divide(values[1:], scales, out=np.zeros(len(degrees)), where=scales > 0)
    return student(degrees).cdf(ratios)
