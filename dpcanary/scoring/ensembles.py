"""Scores of an ensemble that was trained in this process."""

from typing import assert_never

import numpy as np

from dpcanary.adjacency import Adjacency
from dpcanary.observations import Observation
from dpcanary.scoring.scores import (
    Array,
    ScoringContext,
    coordinate,
    logit_confidence,
    logit_difference,
)
from dpcanary.training.runs import EnsembleResult


def ensemble_scores(result: EnsembleResult) -> Array:
    """The default scores of trained runs: higher means that world 0 is likelier.

    For gradient canaries, minus the change of the parameters along the canary. For input
    canaries, the logit-confidence of the target minus that of the canary; under `add_remove` and
    `zero_out`, where world 0 alone has the canary, the logit-confidence of the canary.

    Args:
        result: of `train_ensemble`.

    Returns:
        Shape (runs, steps, slots).
    """
    dpsgd, observed = result.dpsgd, result.observations.astype(np.float64)
    context = ScoringContext(
        dpsgd.sample_rate, dpsgd.noise_multiplier, dpsgd.record_steps, result.canaries
    )
    match result.observe:
        case Observation.CHANGE:
            return coordinate(observed, context)
        case Observation.CHANGE_AND_LENGTH:
            return coordinate(observed[..., 0], context)
        case Observation.LOGITS if dpsgd.adjacency is Adjacency.SUBSTITUTE:
            return logit_difference(observed, context)
        case Observation.LOGITS:
            return logit_confidence(observed[..., 1, :], np.array(result.canaries.labels))
        case never:
            assert_never(never)
