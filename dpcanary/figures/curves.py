"""Trade-off curves: what an accountant allows, and what an attack reaches."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from dpcanary.estimation.error_rates import count_errors
from dpcanary.figures.attacks import Profile

Array = NDArray[np.float64]


def accounted_false_negative_rate(profile: Profile, false_positive_rate: ArrayLike) -> Array:
    """Smallest false negative rate that a privacy profile allows.

    Every point (epsilon, delta) of the profile gives a lower bound on this rate, so the maximum of
    these is one too [Dong, Roth and Su, 2022, Proposition 2.5; Wasserman and Zhou, 2010]:
    max(0, 1 - delta - exp(epsilon) fpr, exp(-epsilon) (1 - delta - fpr)).

    Args:
        profile: accounted (delta, epsilon).
        false_positive_rate: shape (m,), in [0, 1].

    Returns:
        Shape (m,). Never above the exact curve; the coarser the profile, the further below it.
    """
    rates = np.asarray(false_positive_rate, dtype=np.float64)[:, None]
    # An infinite epsilon bounds nothing. exp(700) is about the largest float, and lines steeper
    # than that are below 0 at all rates that can be observed.
    known = np.isfinite(profile.epsilon)
    epsilon, delta = np.minimum(profile.epsilon[known], 700.0), profile.delta[known]
    steep = 1 - delta - np.exp(epsilon) * rates
    flat = np.exp(-epsilon) * (1 - delta - rates)
    best: Array = np.maximum(steep, flat).max(axis=1, initial=0.0)
    return best


def measured_error_curve(world0_scores: Array, world1_scores: Array) -> tuple[Array, Array]:
    """Error rates of `world 0 if score >= threshold`, at each distinct world-0 score.

    Args:
        world0_scores: shape (n0,).
        world1_scores: shape (n1,).

    Returns:
        (false positive rates, false negative rates), both of shape (k,), by rising threshold.
    """
    counts = count_errors(world0_scores=world0_scores, world1_scores=world1_scores)
    return counts.false_positives / counts.num_world1, counts.false_negatives / counts.num_world0


def confidence_band(
    world0_scores: Array, world1_scores: Array, *, confidence: float = 0.95
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Where the true error rates may lie, for each point of `measured_error_curve` alone.

    Both rates of a threshold lie between their bounds with this confidence, by the interval of
    Clopper and Pearson (1934) for each and Bonferroni's correction for the two.

    Args:
        world0_scores: shape (n0,).
        world1_scores: shape (n1,).
        confidence: in (0, 1).

    Returns:
        The lower and the upper bounds, each as (false positive rates, false negative rates).
    """
    counts = count_errors(world0_scores=world0_scores, world1_scores=world1_scores)
    tail = (1.0 - confidence) / 4
    sides = [
        _clopper_pearson(errors, trials, tail)
        for errors, trials in (
            (counts.false_positives, counts.num_world1),
            (counts.false_negatives, counts.num_world0),
        )
    ]
    [fpr, fnr] = sides
    return (fpr[0], fnr[0]), (fpr[1], fnr[1])


def _clopper_pearson(errors: NDArray[np.int64], trials: int, tail: float) -> tuple[Array, Array]:
    with np.errstate(invalid="ignore"):
        low = betaincinv(errors, trials - errors + 1, tail)
        high = betaincinv(errors + 1, trials - errors, 1.0 - tail)
    return np.where(errors == 0, 0.0, low), np.where(errors == trials, 1.0, high)


def thinned(
    false_positive_rates: Array, false_negative_rates: Array, *, most: int
) -> NDArray[np.intp]:
    """Indices of at most `most` points that look like the whole curve on logarithmic axes.

    Args:
        false_positive_rates: shape (k,), positive, falling.
        false_negative_rates: shape (k,), positive, rising.
        most: how many points to keep.
    """
    size = len(false_positive_rates)
    if size <= most:
        return np.arange(size)
    rising, falling = (
        np.searchsorted(rates, np.geomspace(rates[0], rates[-1], most // 2))
        for rates in (false_negative_rates, false_positive_rates[::-1])
    )
    return np.unique(np.clip(np.concatenate([rising, size - 1 - falling]), 0, size - 1))
