"""Names of conversions, limits, and settings of the stage that estimates epsilon."""

from pydantic import Field

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import Choice
from dpcanary.core.setting_fields import ClosedModel, Probability


class Conversion(Choice):
    """Among which trade-off curves the mechanism's is looked for, and how it gives an epsilon.

    Attributes:
        GDP: through Gaussian differential privacy (Dong et al., 2022; Nasr et al., 2023).
        SUBSAMPLED_GAUSSIAN: through the trade-off curves of DP-SGD with a given sample rate,
            number of steps and adjacency, and any noise.
        DIRECT: from the definition of (epsilon, delta)-DP (Kairouz et al., 2015).
    """

    GDP = "gdp"
    SUBSAMPLED_GAUSSIAN = "subsampled_gaussian"
    DIRECT = "direct"


class RankRule(Choice):
    """How ranks of secrets become a bound.

    Attributes:
        SINGLE: the rank of one secret.
        MAHLOUJIFAR: how many of the guesses are right, from a trade-off curve; the secrets of a
            training may depend on one another in any way (after Mahloujifar et al., 2024).
        STEINKE: the same under (epsilon, delta)-DP (after Steinke et al., 2023).
        COUNT: how many of the guesses are right, for independent secrets, all of which are guessed.
        BITS: the sum of the exposures, log2(k / rank), for independent secrets.
    """

    SINGLE = "single"
    MAHLOUJIFAR = "mahloujifar"
    STEINKE = "steinke"
    COUNT = "count"
    BITS = "bits"


# The share of slots that are guessed, in audits whose bound is near the largest that they can show.
GUESSED_SHARE = 0.25
# Deltas that conversion `subsampled_gaussian` is computed for.
LEAST_EXACT_DELTA, LARGEST_EXACT_DELTA = 1e-11, 0.01
# Smaller ones would need too many simulations.
LEAST_CALIBRATED_SIGNIFICANCE = 0.001


class Independence(Choice):
    """Which scores of an audit with several slots a bound treats as independent.

    Attributes:
        RUNS: the runs. Each slot gets a bound of its own, from its scores in all runs. Where coins
            decide the worlds, this assumes nothing about the slots of a run.
        SLOTS: all slots of all runs, pooled into one bound. This assumes that the slots of a run
            do not influence each other and that their scores have the same distributions.
    """

    RUNS = "runs"
    SLOTS = "slots"


class EstimationKeys(ClosedModel):
    """Keys of how scores become bounds; all audits of a config share them."""

    delta: Probability = Field(description="of (epsilon, delta)-DP, audited and accounted")
    significance: float = Field(
        0.05, ge=1e-6, le=0.5, description="probability that a bound exceeds the truth"
    )
    conversions: tuple[Conversion, ...] = Field(
        (Conversion.GDP,), min_length=1, description="among which trade-off curves bounds are found"
    )
    independent: Independence = Field(
        Independence.RUNS, description="which scores count as independent with several slots"
    )
    guessed_share: float = Field(
        GUESSED_SHARE,
        gt=0,
        le=1,
        description="share of all slots whose worlds are guessed, half of it in each world; for"
        " threshold rules steinke, mahloujifar and order_statistic",
    )
    rank_rules: tuple[RankRule, ...] = Field(
        (RankRule.MAHLOUJIFAR,),
        min_length=1,
        description="how ranks become bounds, in audits whose slots hold secrets; threshold_rules"
        " are for all others",
    )


class EstimationStage(EstimationKeys):
    """How the scores of one audit become bounds.

    Attributes:
        threshold_rules: names of rules.
        looks: numbers of runs of both worlds at which the bounds hold jointly; none if each bound
            holds alone.
        adjacency: audited; only `subsampled_gaussian` uses it and the three below.
        sample_rate: of Poisson sampling; 1 with fixed batches.
        canary_period: with fixed batches, the steps per insertion of the canary.
        in_first_step: whether the canary is inserted in the first step alone.
    """

    threshold_rules: tuple[str, ...]
    looks: tuple[int, ...] = ()
    adjacency: Adjacency = Adjacency.SUBSTITUTE
    sample_rate: float = 1.0
    canary_period: int | None = None
    in_first_step: bool = False
