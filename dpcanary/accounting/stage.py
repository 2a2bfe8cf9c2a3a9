"""What the stages of accounting are told."""

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


class AccountingStage(ClosedModel):
    """What the accounted upper bounds depend on, except for the noise multiplier."""

    sample_rate: float
    record_steps: tuple[int, ...]
    canary_period: int | None
    delta: float

    @property
    def insertions(self) -> tuple[int, ...]:
        """For each recorded step, how many steps up to it the canary may come in."""
        return tuple(step // (self.canary_period or 1) for step in self.record_steps)
