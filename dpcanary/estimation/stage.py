"""The settings of the stage that estimates epsilon."""

from dpcanary.adjacency import Adjacency
from dpcanary.closed_model import ClosedModel
from dpcanary.estimation.options import GUESSED_SHARE, Conversion, Independence


class EstimationStage(ClosedModel):
    """How scores become bounds.

    Attributes:
        guessed_share: the share of all slots that rules of guesses guess.
        looks: numbers of runs of both worlds at which the bounds hold jointly; none if each bound
            holds alone.
        adjacency: audited; only `subsampled_gaussian` uses it and the three below.
        sample_rate: of Poisson sampling; 1 with fixed batches.
        canary_period: with fixed batches, the steps per insertion of the canary.
        in_first_step: whether the canary is inserted in the first step alone.
    """

    delta: float
    significance: float
    threshold_rules: tuple[str, ...]
    conversions: tuple[Conversion, ...]
    independent: Independence
    guessed_share: float = GUESSED_SHARE
    looks: tuple[int, ...] = ()
    adjacency: Adjacency = Adjacency.SUBSTITUTE
    sample_rate: float = 1.0
    canary_period: int | None = None
    in_first_step: bool = False
