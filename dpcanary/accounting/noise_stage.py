"""What the stage that fixes the noise is told."""

from dpcanary.adjacency import Adjacency
from dpcanary.closed_model import ClosedModel


class NoiseStage(ClosedModel):
    """What fixes the noise multiplier.

    Either `noise_multiplier` is given, or it is calibrated to `target_epsilon` at
    `target_delta`. `accounted_steps` are the steps in which the canary may come in.
    """

    adjacency: Adjacency
    sample_rate: float
    accounted_steps: int
    noise_multiplier: float | None
    target_epsilon: float | None
    target_delta: float | None
