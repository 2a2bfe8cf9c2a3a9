"""A loss for which the last model of DP-SGD leaks what all models leak.

The statement is that of Annamalai, "It's Our Loss" (2024). The construction here is our own.

The model is a pair of numbers, x and y, in units of the clipping norm C, and the learning rate
is 1. The canary's loss is linear in x, and the loss of all other records is

    ((x - 0)^2 + (y - t(x, y))^2) C^2 / (2 m),  t(x, y) = W (round(y / W) + round(l(-x) / h)).

Here m is the expected number of other records in a batch, and l the log-likelihood ratio of one
noisy gradient. t is constant between jumps, so the gradient of such a record is (x, y - t) C / m
almost everywhere. A step moves x to minus the new noisy gradient, and y to t plus noise: y
remembers the ratios of all steps before, in units of h. Its noise is corrected by the rounding to
multiples of W in the next step, like an error of a digital memory.
"""

from dataclasses import dataclass

import numpy as np

from dpcanary.adversaries.adversary_settings import Purpose
from dpcanary.adversaries.drawing import RUNS_PER_STREAM, Drawing
from dpcanary.adversaries.worst_case import log_likelihood_ratio
from dpcanary.core.adjacency import Adjacency
from dpcanary.scoring.scores import Array, ScoringContext

# Standard deviations of the noise between two remembered numbers: 8 on each side is never seen.
_GAP = 16.0


@dataclass(frozen=True)
class EncodingLoss:
    """The crafted loss, and the dataset that it is for.

    Attributes:
        sample_rate: q, of Poisson sampling.
        noise_multiplier: sigma, above 0.
        adjacency: what the canary's gradient +C is compared with.
        expected_batch: m, the expected number of other records in a batch. A large number makes
            the sum of their gradients nearly certain, and lets it move the model far.
        resolution: h, the step in which log-likelihood ratios are remembered.
    """

    sample_rate: float
    noise_multiplier: float
    adjacency: Adjacency
    expected_batch: float = 1e6
    resolution: float = 2.0**-10

    @property
    def gap(self) -> float:
        """W, the distance of two remembered numbers, in units of C."""
        return _GAP * self.noise_multiplier

    @property
    def num_others(self) -> int:
        """Records beside the canary."""
        return round(self.expected_batch / self.sample_rate)

    @property
    def start(self) -> Array:
        """The model before the first step, shape (2,). It undoes the ratio of x = 0."""
        return np.array([0.0, -self.gap * self._counts(np.zeros(1))[0]])

    def other_gradients(self, models: Array) -> Array:
        """The gradient of each record but the canary, clipped, of models of shape (..., 2)."""
        gradients = (models - self._goals(models)) / self.expected_batch
        norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
        return np.asarray(gradients / np.maximum(norms, 1.0))

    def decoded(self, models: Array) -> Array:
        """The log-likelihood ratio of all noisy gradients, from models of shape (..., 2) alone."""
        remembered = np.rint(models[..., 1] / self.gap) * self.resolution
        return np.asarray(remembered + self._ratios(models[..., 0]))

    def _goals(self, models: Array) -> Array:
        """Where a step without noise leads."""
        remembered = np.rint(models[..., 1] / self.gap) + self._counts(models[..., 0])
        return np.stack([np.zeros_like(remembered), self.gap * remembered], axis=-1)

    def _counts(self, x: Array) -> Array:
        """The ratio of the last step, in units of h, rounded."""
        return np.asarray(np.rint(self._ratios(x) / self.resolution))

    def _ratios(self, x: Array) -> Array:
        """The log-likelihood ratio of the last step, whose noisy gradient is -x."""
        return log_likelihood_ratio(
            -x,
            sample_rate=self.sample_rate,
            noise_multiplier=self.noise_multiplier,
            num_steps=1,
            adjacency=self.adjacency,
        )


def draw_models(drawing: Drawing) -> Array:
    """Draws the model after each recorded step, in units of C, shape (runs, steps, 2)."""
    stage = drawing.stage
    loss = EncodingLoss(stage.sample_rate, drawing.noise_multiplier, stage.adjacency)
    difference = int(stage.adjacency.sensitivity)
    drawn = []
    for stream, rows, worlds in drawing.streams(Purpose.ENCODING_LOSS):
        signs = 1 - difference * worlds
        models, kept = np.tile(loss.start, (len(worlds), 1)), []
        for step in range(1, stage.record_steps[-1] + 1):
            noise = stream.standard_normal((RUNS_PER_STREAM, 2)) * loss.noise_multiplier
            sampled = stream.random(RUNS_PER_STREAM) < loss.sample_rate
            others = stream.binomial(loss.num_others, loss.sample_rate, size=RUNS_PER_STREAM)
            gradients = others[rows, None] * loss.other_gradients(models) + noise[rows]
            gradients[:, 0] += signs * sampled[rows]
            models = models - gradients
            if step in stage.record_steps:
                kept.append(models)
        drawn.append(np.stack(kept, axis=1))
    return np.concatenate(drawn)


def decoded_ratio(observed: Array, context: ScoringContext) -> Array:
    """Score: the ratio that is decoded from each model, shape (runs, steps, slots)."""
    loss = EncodingLoss(context.sample_rate, context.noise_multiplier, context.adjacency)
    return loss.decoded(observed)
