"""Scores, which the catalogue of adversaries names.

A score function takes observations, shape (runs, steps, slots, ...), and a `ScoringContext`. It
returns shape (runs, steps, slots). Higher means that world 0 is likelier. Where slots hold secrets,
it returns shape (runs, steps, slots, values), and higher means that a value is likelier.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dpcanary.core.adjacency import Adjacency
from dpcanary.data.canaries import CanarySet, GradientCanary
from dpcanary.data.observations import Observation
from dpcanary.data.records import Labels
from dpcanary.errors import InputError
from dpcanary.training.training_settings import Loss

if TYPE_CHECKING:  # scoring needs nothing of the training
    from dpcanary.training.runs import EnsembleResult

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ScoringContext:
    """What a score may depend on, beside the observation.

    `runs_settings` are those of the jobs that made the runs. Where no model is trained, there are
    no canaries and no loss. `num_candidates` are the values of a slot that holds a secret.
    """

    sample_rate: float
    noise_multiplier: float
    record_steps: tuple[int, ...]
    canaries: CanarySet | None
    runs_settings: Mapping[str, Any] = field(default_factory=dict)
    adjacency: Adjacency = Adjacency.SUBSTITUTE
    loss: Loss | None = None
    num_candidates: int | None = None


def ranks_among(scores: Array, truth: NDArray[Any]) -> NDArray[np.int64]:
    """The rank of the true one of some candidates, 1 for the highest score; ties take the last.

    `scores` have the shape (..., candidates), and the index of the true one any shape that
    broadcasts to (...).
    """
    place = np.broadcast_to(truth, scores.shape[:-1])[..., None].astype(np.int64)
    own = np.take_along_axis(scores, place, axis=-1)
    return np.asarray((scores >= own).sum(axis=-1), np.int64)


def as_observed(observed: Array, context: ScoringContext) -> Array:
    """The observation, which already is a score."""
    return observed


def coordinate(observed: Array, context: ScoringContext) -> Array:
    """Minus the change of the parameters along each slot's canary, or minus their values.

    Descent on the gradient +C, in world 0, moves the parameters down. A change that is expected
    without the canary is subtracted (`GradientCanary.drift`). It differs between slots.
    """
    canaries = context.canaries.canaries if context.canaries else ()
    drifts = [
        canary.drift for canary in canaries if isinstance(canary, GradientCanary) and canary.drift
    ]
    return np.array(drifts).T - observed if drifts else -observed


def cosine(observed: Array, context: ScoringContext) -> Array:
    """Minus the cosine between the canary and the change of all parameters.

    From Andrew et al. (2024); Cebere et al., Algorithm 7. A run that has not moved gets 0.

    `observed` holds changes along the canary, and lengths of the change, shape (..., slots, 2).
    """
    change, length = observed[..., 0], observed[..., 1]
    return -np.divide(change, length, out=np.zeros_like(change), where=length > 0)


def transcript(observed: Array, context: ScoringContext) -> Array:
    """The log-likelihood ratio of all noisy gradients along the canary, up to each recorded step.

    It is that of independent steps, each of which adds the canary of length C with probability q,
    and the noise, so it is exact where no other gradient has a part along the canary. Nothing is
    subtracted for the others: the score then is not the best one, and the bound as valid.

    `observed` holds noisy gradients, shape (runs, steps, slots, most steps between two recorded
    ones), in units of C, of which the noise has standard deviation `noise_multiplier`, above 0.
    """
    sigma, rate = context.noise_multiplier, context.sample_rate
    substitute = context.adjacency is Adjacency.SUBSTITUTE
    with np.errstate(divide="ignore"):  # where every step has the canary, log(1 - q) is -inf
        absent, present = np.log1p(-rate), np.log(rate)

    def log_density(sign: int) -> Array:
        """The log density of a step in the world that adds sign x C, beside that of noise alone."""
        tilted = (sign * observed - 0.5) / sigma**2
        return np.asarray(np.logaddexp(absent, present + tilted))

    ratios = log_density(1) - (log_density(-1) if substitute else 0.0)
    ends = np.array(context.record_steps)[:, None]
    steps = np.insert(ends[:-1], 0, 0)[:, None] + np.arange(1, observed.shape[-1] + 1)
    period = context.runs_settings.get("canary_period") or 1
    counts = (steps <= ends) & (steps % period == 0)
    return np.asarray((ratios * counts[:, None]).sum(axis=-1).cumsum(axis=1))


def canary_loss(observed: Array, context: ScoringContext) -> Array:
    """Minus the loss of the canary, which is lower where it was trained on (Cebere et al., A_L).

    Under `substitute`, where world 1 trains on the canary and world 0 on the target, the loss of
    the canary minus that of the target.

    `observed` holds logits of target and canary, shape (runs, steps, slots, 2, outputs).
    """
    canaries = _input_canaries(context, "loss")
    losses = _losses(observed[..., 1, :], np.array(canaries.labels), context.loss)
    if context.adjacency is not Adjacency.SUBSTITUTE:
        return -losses
    return losses - _losses(observed[..., 0, :], np.array(canaries.target_labels), context.loss)


def label_losses(observed: Array, context: ScoringContext) -> Array:
    """Minus the loss of each label of each slot's record, shape (runs, steps, slots, labels).

    `observed` holds logits of target and canary, which have the same features, shape (runs, steps,
    slots, 2, outputs).
    """
    logits = observed[..., 1, :]
    labels = [np.full(logits.shape[-2], label) for label in range(context.num_candidates or 0)]
    losses = [_losses(logits, label, context.loss) for label in labels]
    return -np.stack(losses, axis=-1)


def gradient_norm(observed: Array, context: ScoringContext) -> Array:
    """Minus the norm of the canary's gradient, which is smaller where it was trained on.

    Under `substitute`, where world 1 trains on the canary, the norm itself.
    """
    return observed if context.adjacency is Adjacency.SUBSTITUTE else -observed


def logit_difference(observed: Array, context: ScoringContext) -> Array:
    """Logit-confidence of the target, log(p_y / (1 - p_y)), minus that of its canary.

    `observed` holds logits of target and canary, shape (runs, steps, slots, 2, classes).
    """
    canaries = _input_canaries(context, "logit_difference")
    targets = logit_confidence(observed[..., 0, :], np.array(canaries.target_labels))
    substitutes = logit_confidence(observed[..., 1, :], np.array(canaries.labels))
    return targets - substitutes


def logit_confidence(logits: Array, labels: NDArray[np.int64]) -> Array:
    """log(p_y / (1 - p_y)) from logits: the logit minus the log-sum-exp of the others.

    A single output is the logit of class 1 against class 0. It is then the result for y = 1, and
    its negative the result for y = 0. Logits have shape (..., slots, outputs), the labels y of
    each slot (slots,), and the result (..., slots).
    """
    if logits.shape[-1] == 1:
        return np.asarray(logits[..., 0] * np.where(labels == 1, 1.0, -1.0))
    classes = np.arange(logits.shape[-1])
    others = np.stack([np.delete(classes, label) for label in labels])
    lead = (1,) * (logits.ndim - 2)
    rest = np.take_along_axis(logits, others.reshape(*lead, *others.shape), axis=-1)
    chosen = logits[..., np.arange(len(labels)), labels]
    return np.asarray(chosen - logsumexp(rest, axis=-1))


def ensemble_scores(result: "EnsembleResult") -> Array:
    """The default scores of runs that `train_ensemble` trained, shape (runs, steps, slots).

    Higher means world 0. The score of a gradient canary is minus the change of the parameters
    along it, or minus their values, or the log-likelihood ratio of all noisy gradients. That of an
    input canary is the logit-confidence of the target minus that of the canary; under `add_remove`
    and `zero_out`, where only world 0 has the canary, that of the canary alone. Where labels are
    numbers it is `canary_loss`.
    """
    dpsgd, observed = result.dpsgd, result.observations.astype(np.float64)
    context = ScoringContext(
        dpsgd.sample_rate,
        dpsgd.noise_multiplier,
        dpsgd.record_steps,
        result.canaries,
        {"canary_period": dpsgd.canary_period},
        adjacency=dpsgd.adjacency,
        loss=dpsgd.loss,
    )
    match result.observe:
        case Observation.CHANGE | Observation.VALUE:
            return coordinate(observed, context)
        case Observation.CHANGE_AND_LENGTH:
            return coordinate(observed[..., 0], context)
        case Observation.NOISY_GRADIENTS:
            return transcript(observed, context)
        case Observation.GRADIENT_NORM:
            return gradient_norm(observed, context)
        case Observation.LOGITS if not dpsgd.loss.is_of_classes:
            return canary_loss(observed, context)
        case Observation.LOGITS if dpsgd.adjacency is Adjacency.SUBSTITUTE:
            return logit_difference(observed, context)
        case Observation.LOGITS:
            return logit_confidence(observed[..., 1, :], np.array(result.canaries.labels))
        case never:
            assert_never(never)


def _input_canaries(context: ScoringContext, score: str) -> CanarySet:
    if context.canaries is None:
        raise InputError(f"score {score} needs the file of input canaries")
    return context.canaries


def _losses(logits: Array, labels: Labels, loss: Loss | None) -> Array:
    """The loss of each slot's record, from outputs of shape (..., slots, outputs)."""
    outputs = logits.shape[-1]
    if loss is Loss.SQUARED_ERROR:
        return np.asarray(np.square(logits[..., 0] - labels))
    if loss is Loss.CROSS_ENTROPY:
        chosen = logits[..., np.arange(len(labels)), labels]
        return np.asarray(logsumexp(logits, axis=-1) - chosen)
    targets = labels[:, None] if outputs == 1 else np.eye(outputs)[labels]
    # log(1 + e^x) - y x, for each output x and its target y.
    return np.asarray((np.logaddexp(0.0, logits) - targets * logits).mean(axis=-1))
