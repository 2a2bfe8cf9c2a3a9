"""The settings of the stage that finds the noise."""

from dpcanary.adjacency import Adjacency
from dpcanary.closed_model import ClosedModel


class NoiseStage(ClosedModel):
    """The noise multiplier, or what it follows from.

    If `noise_multiplier` is None, it is calibrated to `target_epsilon` at `target_delta`.
    `accounted_steps` is the number of steps in which the canary may be used.
    """

    adjacency: Adjacency
    sample_rate: float
    accounted_steps: int
    noise_multiplier: float | None
    target_epsilon: float | None
    target_delta: float | None
