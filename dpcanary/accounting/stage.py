"""The settings of the accounting stage."""

from dpcanary.adjacency import Adjacency
from dpcanary.closed_model import ClosedModel


class AccountingStage(ClosedModel):
    """All that the accounted upper bounds depend on, except the noise multiplier.

    Attributes:
        adjacency: the audited one. Epsilons are accounted under several; the distance of the
            trade-off curve from a Gaussian one is that under this adjacency.
    """

    adjacency: Adjacency = Adjacency.SUBSTITUTE
    sample_rate: float
    record_steps: tuple[int, ...]
    canary_period: int | None
    delta: float

    @property
    def insertions(self) -> tuple[int, ...]:
        """For each recorded step, the number of steps up to it in which the canary may be used."""
        return tuple(step // (self.canary_period or 1) for step in self.record_steps)
