"""Scores, which the catalogue of adversaries names.

A score function takes observations, shape (runs, steps, slots, ...), and a `ScoringContext`. It
returns shape (runs, steps, slots). Higher means that world 0 is likelier.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpcanary.canaries import CanarySet
from dpcanary.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ScoringContext:
    """What a score may depend on, beside the observation.

    Attributes:
        sample_rate: q.
        noise_multiplier: sigma.
        record_steps: ascending.
        canaries: None if no model is trained.
        runs_settings: the settings of the jobs that made the runs.
    """

    sample_rate: float
    noise_multiplier: float
    record_steps: tuple[int, ...]
    canaries: CanarySet | None
    runs_settings: Mapping[str, Any] = field(default_factory=dict)


def as_observed(observed: Array, context: ScoringContext) -> Array:
    """The observation, which already is a score."""
    return observed


def coordinate(observed: Array, context: ScoringContext) -> Array:
    """Minus the change of the parameters along each slot's canary.

    Descent on the gradient +C, in world 0, moves the parameters down.
    """
    return -observed


def logit_difference(observed: Array, context: ScoringContext) -> Array:
    """Logit-confidence of the target, log(p_y / (1 - p_y)), minus that of its canary.

    Args:
        observed: logits of target and canary, shape (runs, steps, slots, 2, classes).
        context: has the labels of both.

    Raises:
        InputError: if the audit has no input canaries.
    """
    if context.canaries is None:
        raise InputError("score logit_difference needs the file of input canaries")
    targets = logit_confidence(observed[..., 0, :], np.array(context.canaries.target_labels))
    substitutes = logit_confidence(observed[..., 1, :], np.array(context.canaries.labels))
    return targets - substitutes


def logit_confidence(logits: Array, labels: NDArray[np.int64]) -> Array:
    """log(p_y / (1 - p_y)) from logits: the logit minus the log-sum-exp of the others.

    A single output is the logit of class 1 against class 0. It is then the result for y = 1, and
    its negative the result for y = 0.

    Args:
        logits: shape (..., slots, outputs).
        labels: y of each slot, shape (slots,).

    Returns:
        Shape (..., slots).

    Example:
        >>> found = logit_confidence(np.log([[0.8, 0.2]]), np.array([0]))
        >>> float(found[0].round(6)) == float(np.log(4).round(6))
        True
    """
    if logits.shape[-1] == 1:
        return np.asarray(logits[..., 0] * np.where(labels == 1, 1.0, -1.0))
    classes = np.arange(logits.shape[-1])
    others = np.stack([np.delete(classes, label) for label in labels])
    lead = (1,) * (logits.ndim - 2)
    rest = np.take_along_axis(logits, others.reshape(*lead, *others.shape), axis=-1)
    chosen = logits[..., np.arange(len(labels)), labels]
    return np.asarray(chosen - logsumexp(rest, axis=-1))
