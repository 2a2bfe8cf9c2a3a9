"""From an observation to a score: one number per run and step, higher where world 0 is likelier."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.float64]


def coordinate_score(changes: Array) -> Array:
    """Minus the change of the canary's coordinate: descent on +C (world 0) moves it down.

    Args:
        changes: theta_t - theta_0 in the canary's coordinate, any shape.
    """
    return -changes


def logit_difference_score(logits: Array, *, target_label: int, substitute_label: int) -> Array:
    """Logit-confidence of the target minus that of its substitute, log(p_y / (1 - p_y)) each.

    Args:
        logits: shape (runs, steps, 2, classes); of the target, then of its substitute.
        target_label: y of the target.
        substitute_label: y of the substitute.

    Returns:
        Shape (runs, steps).

    Example:
        >>> logits = np.log([[[[0.8, 0.2], [0.5, 0.5]]]])
        >>> score = logit_difference_score(logits, target_label=0, substitute_label=0)
        >>> float(score[0, 0].round(6)) == float(np.log(4).round(6))
        True
    """
    return logit_confidence(logits[..., 0, :], target_label) - logit_confidence(
        logits[..., 1, :], substitute_label
    )


def logit_confidence(logits: Array, label: int) -> Array:
    """log(p_y / (1 - p_y)) from logits, stably: the logit minus the log-sum-exp of the others.

    Args:
        logits: shape (..., classes).
        label: y.
    """
    others = np.delete(logits, label, axis=-1)
    return np.asarray(logits[..., label] - logsumexp(others, axis=-1))
