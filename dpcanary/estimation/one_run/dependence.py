"""A check of whether the slots of a run are independent: it can refute this, never prove it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import f as f_distribution

from dpcanary.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SlotDependence:
    """What the slots of the same run share, beyond what the slots of different runs share.

    Attributes:
        correlation: between the scores of two slots of a run, after the means of worlds and slots
            are subtracted.
        correlation_of_sizes: between the distances of these scores from 0. It shows runs whose
            scores are all clear, or all blurred.
        p_value: of the larger of both, under independence, by F tests of the variance between runs
            (exact for Gaussian scores), with Bonferroni's correction.
    """

    correlation: float
    correlation_of_sizes: float
    p_value: float


def slot_dependence(*, scores: ArrayLike, worlds: ArrayLike) -> SlotDependence:
    """Compares what slots of the same run and of different runs have in common.

    Args:
        scores: shape (R, K), of the slots of at least two runs.
        worlds: shape (R, K), 0 or 1.

    Raises:
        InputError: if there is one run or one slot, or the shapes differ.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> worlds = rng.integers(0, 2, (10, 200))
        >>> apart = rng.normal(1.0 - worlds)
        >>> together = apart + rng.normal(size=(10, 1))
        >>> for scores in (apart, together):
        ...     print(slot_dependence(scores=scores, worlds=worlds).p_value < 0.01)
        False
        True
    """
    values, sides = np.asarray(scores, np.float64), np.asarray(worlds)
    if values.ndim != 2 or values.shape != sides.shape or min(values.shape) < 2:
        raise InputError(
            f"scores and worlds have shapes {values.shape} and {sides.shape}; they must be (runs,"
            " slots), with two of each at least"
        )
    rest = values.copy()
    for world in (0, 1):
        chosen = sides == world
        rest[chosen] -= values[chosen].mean() if chosen.any() else 0.0
    rest -= rest.mean(axis=0)
    of_scores, of_sizes = _between_runs(rest), _between_runs(np.abs(rest))
    return SlotDependence(
        correlation=of_scores[0],
        correlation_of_sizes=of_sizes[0],
        p_value=min(1.0, 2 * min(of_scores[1], of_sizes[1])),
    )


def _between_runs(values: Floats) -> tuple[float, float]:
    """The correlation within runs (Shrout and Fleiss, 1979, two-way), and its F test's p-value."""
    runs, slots = values.shape
    centred = values - values.mean(axis=0)
    means = centred.mean(axis=1, keepdims=True)
    between = slots * float((means**2).sum()) / (runs - 1)
    within = float(((centred - means) ** 2).sum()) / ((runs - 1) * (slots - 1))
    if within == 0:
        return (0.0, 1.0) if between == 0 else (1.0, 0.0)
    correlation = (between - within) / (between + (slots - 1) * within)
    p_value = f_distribution.sf(between / within, runs - 1, (runs - 1) * (slots - 1))
    return correlation, float(p_value)
