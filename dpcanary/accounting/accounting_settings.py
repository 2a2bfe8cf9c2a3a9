"""The settings of the accounting stage."""

from typing import Any

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.setting_fields import ClosedModel


class AccountingStage(ClosedModel):
    """All that the accounted upper bounds depend on, except the noise multiplier.

    Attributes:
        in_first_step: whether the canary may be used in the first step alone.
        has_equal_steps: whether the last model is the sum of all noisy gradients, each with the
            same factor; so it is not with momentum, Adam or a learning rate that falls.
        batches_per_pass: of shuffled batches; None for others.
        num_copies: records that hold what is protected, each of which is in every batch.
        exact: `module:name` of a function that gives the exact trade-off curves of what is
            observed, where these are known; `exact_settings` is its first argument.
        adjacency: the audited one. Epsilons are accounted under several; the distance of the
            trade-off curve from a Gaussian one is that under this adjacency.
    """

    adjacency: Adjacency = Adjacency.SUBSTITUTE
    sample_rate: float
    record_steps: tuple[int, ...]
    canary_period: int | None
    delta: float
    in_first_step: bool = False
    has_equal_steps: bool = True
    batches_per_pass: int | None = None
    num_copies: int = 1
    exact: str | None = None
    exact_settings: dict[str, Any] | None = None

    @property
    def insertions(self) -> tuple[int, ...]:
        """For each recorded step, the number of steps up to it in which the canary may be used."""
        if self.in_first_step:
            return (1,) * len(self.record_steps)
        period = self.batches_per_pass or self.canary_period or 1
        return tuple(step // period for step in self.record_steps)


class ComparisonStage(ClosedModel):
    """A grid of mechanisms, accounted under two adjacencies at one delta."""

    delta: float
    sample_rates: tuple[float, ...]
    noise_multipliers: tuple[float, ...]
    num_steps: tuple[int, ...]
