"""From an observation to a score: one number per run and step, higher where world 0 is likelier."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpcanary.canaries import InputCanary, PlacedCanary
from dpcanary.canaries.worst_case import log_likelihood_ratio
from dpcanary.errors import InputError
from dpcanary.observations import Shard
from dpcanary.stages import TrainingStage
from dpcanary.vocabulary import Score

Array = NDArray[np.float64]


def scores_of(shard: Shard, stage: TrainingStage, placed: PlacedCanary | None) -> Array:
    """Scores of a shard's runs.

    Args:
        shard: observations of some of an audit's runs.
        stage: what they were told.
        placed: the audit's canary, where it has one.

    Returns:
        Shape (runs, steps).

    Raises:
        InputError: if the score needs an input canary and there is none.
    """
    observed = shard.observation.astype(np.float64)
    if stage.score is Score.TRANSCRIPT:
        return observed
    if stage.score is Score.COORDINATE:
        if observed.ndim != 2:
            raise InputError("score coordinate is for a canary in one coordinate alone")
        return coordinate_score(observed)
    if stage.score is Score.FINAL_SUM:
        sigma = shard.header["noise_multiplier"]
        return final_sum_score(observed, stage=stage, noise_multiplier=sigma)
    if placed is None or not isinstance(placed.canary, InputCanary):
        raise InputError(f"score {stage.score} needs the file of an input canary")
    return logit_difference_score(
        observed, target_label=placed.target_label, substitute_label=placed.canary.label
    )


def final_sum_score(sums: Array, *, stage: TrainingStage, noise_multiplier: float) -> Array:
    """Log-likelihood ratios of the summed noisy gradients.

    Args:
        sums: shape (runs, steps), in units of C.
        stage: sample rate and recorded steps.
        noise_multiplier: sigma.
    """
    columns = [
        log_likelihood_ratio(
            sums[:, index],
            sample_rate=stage.sample_rate,
            noise_multiplier=noise_multiplier,
            num_steps=step,
        )
        for index, step in enumerate(stage.record_steps)
    ]
    return np.column_stack(columns)


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
