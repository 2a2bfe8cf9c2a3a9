"""What the stage of accounting is told."""

from dpcanary.closed_model import ClosedModel


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
