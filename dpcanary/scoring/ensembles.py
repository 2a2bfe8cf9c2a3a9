"""Scores of the runs that `train_ensemble` trained."""

from typing import assert_never

import numpy as np

from dpcanary.adjacency import Adjacency
from dpcanary.observations import Observation
from dpcanary.scoring.scores import (
    Array,
    ScoringContext,
    coordinate,
    gradient_norm,
    logit_confidence,
    logit_difference,
)
from dpcanary.training.runs import EnsembleResult


def ensemble_scores(result: EnsembleResult) -> Array:
    """The default scores of trained runs, shape (runs, steps, slots). Higher means world 0.

    The score of a gradient canary is minus the change of the parameters along it, or minus their
    values. The score of an input canary is the logit-confidence of the target minus that of the
    canary. Under `add_remove` and `zero_out`, where only world 0 has the canary, it is the
    logit-confidence of the canary.
    """
    dpsgd, observed = result.dpsgd, result.observations.astype(np.float64)
    known = dpsgd.sample_rate, dpsgd.noise_multiplier, dpsgd.record_steps
    context = ScoringContext(*known, result.canaries, adjacency=dpsgd.adjacency, loss=dpsgd.loss)
    match result.observe:
        case Observation.CHANGE | Observation.VALUE:
            return coordinate(observed, context)
        case Observation.CHANGE_AND_LENGTH:
            return coordinate(observed[..., 0], context)
        case Observation.GRADIENT_NORM:
            return gradient_norm(observed, context)
        case Observation.LOGITS if dpsgd.adjacency is Adjacency.SUBSTITUTE:
            return logit_difference(observed, context)
        case Observation.LOGITS:
            return logit_confidence(observed[..., 1, :], np.array(result.canaries.labels))
        case never:
            assert_never(never)
