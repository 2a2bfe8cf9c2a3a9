"""Errors of the attack `world 0 if score >= threshold`, at every threshold that matters."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv

from dpcanary.checks import checked_real
from dpcanary.errors import InputError

# The simultaneous level can be computed down to half of this.
_LEAST_SIGNIFICANCE = 2e-9
# A bound that fails more often than it holds is no bound.
_LARGEST_SIGNIFICANCE = 0.5


def checked_significance(significance: float) -> float:
    """The significance, as a float.

    Raises:
        InputError: if it is not a number in [2e-9, 0.5].
    """
    value = checked_real(
        "significance", significance, most=_LARGEST_SIGNIFICANCE, most_included=True
    )
    if value < _LEAST_SIGNIFICANCE:
        raise InputError(f"significance is {value}; it must be at least {_LEAST_SIGNIFICANCE:g}")
    return value


@lru_cache(maxsize=64)
def clopper_pearson_upper_table(*, num_trials: int, level: float) -> NDArray[np.float64]:
    """Upper bounds for every possible count of errors.

    Args:
        num_trials: number of independent trials, n.
        level: probability with which each single bound may fail, in (0, 1).

    Returns:
        Shape (n + 1,), read-only: entry k bounds the error rate after k errors. Entry n is 1.

    Example:
        >>> table = clopper_pearson_upper_table(num_trials=100, level=0.025)
        >>> [round(float(table[k]), 4) for k in (0, 10, 100)]
        [0.0362, 0.1762, 1.0]
    """
    errors = np.arange(num_trials)
    table = np.append(betainccinv(errors + 1.0, num_trials - errors, level), 1.0)
    table.flags.writeable = False
    return table


@dataclass(frozen=True)
class ErrorCounts:
    """Counts of errors at each of k thresholds.

    Attributes:
        thresholds: shape (k,).
        false_positives: shape (k,); world-1 scores at or above the threshold.
        false_negatives: shape (k,); world-0 scores below the threshold.
        num_world0: number of world-0 scores.
        num_world1: number of world-1 scores.
    """

    thresholds: NDArray[np.float64]
    false_positives: NDArray[np.int64]
    false_negatives: NDArray[np.int64]
    num_world0: int
    num_world1: int


def count_errors(
    *,
    world0_scores: NDArray[np.float64],
    world1_scores: NDArray[np.float64],
    threshold: float | None = None,
) -> ErrorCounts:
    """Counts errors by one sort of each world's scores.

    Args:
        world0_scores: shape (n0,).
        world1_scores: shape (n1,).
        threshold: the only threshold to look at. By default the distinct world-0 scores are the
            thresholds. Any other threshold has the false negatives of the next larger world-0
            score, and at least its false positives, so none is better.
    """
    sorted0, sorted1 = np.sort(world0_scores), np.sort(world1_scores)
    thresholds = np.unique(sorted0) if threshold is None else np.array([threshold])
    return ErrorCounts(
        thresholds=thresholds,
        false_positives=len(sorted1) - np.searchsorted(sorted1, thresholds, side="left"),
        false_negatives=np.searchsorted(sorted0, thresholds, side="left"),
        num_world0=len(sorted0),
        num_world1=len(sorted1),
    )


def checked_scores(name: str, scores: ArrayLike) -> NDArray[np.float64]:
    """The scores as a flat float array.

    Raises:
        InputError: if they are not one-dimensional real numbers, are empty or masked, or hold a
            NaN; the message says where.
    """
    if np.ma.isMaskedArray(scores):
        raise InputError(f"{name} is a masked array: a missing score must be mended, not masked")
    try:
        given = np.asarray(scores)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from error
    if given.dtype.kind not in "fiub":
        raise InputError(f"{name} must be real numbers, not {given.dtype}")
    array = given.astype(np.float64)
    if array.ndim != 1 or array.size == 0:
        raise InputError(
            f"{name} must be one-dimensional and not empty; its shape is {array.shape}"
        )
    missing = np.flatnonzero(np.isnan(array))
    if missing.size:
        raise InputError(
            f"{name}[{missing[0]}] is NaN ({missing.size} of {array.size} are): a run that"
            " diverged must be mended or trained again, never dropped"
        )
    return array
