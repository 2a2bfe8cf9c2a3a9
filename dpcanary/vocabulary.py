"""The names that a config and the library's functions take; docs/vocabulary.md explains them."""

from enum import StrEnum

from dpcanary.errors import InputError, suggestion


class _Choice(StrEnum):
    """A closed set of names; an unknown one is an error that offers the nearest."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise InputError(f"unknown {cls.__name__} {value!r}: {suggestion(str(value), cls)}")


class Canary(_Choice):
    """How the neighbouring dataset differs (S1 to S5 of Pradhan et al.).

    Attributes:
        WORST_CASE: both datasets are crafted: the target's gradient is +C, its substitute's -C,
            all others are zero.
        GRADIENT: the target record's gradient is replaced by +C or -C in one coordinate.
        CRAFTED_INPUT: a record optimised so that its gradient opposes the target's.
        MISLABELED: the target with the label whose gradient opposes it most.
        NATURAL: the auxiliary record whose gradient opposes the target's most.
    """

    WORST_CASE = "worst_case"
    GRADIENT = "gradient"
    CRAFTED_INPUT = "crafted_input"
    MISLABELED = "mislabeled"
    NATURAL = "natural"

    @property
    def is_trained(self) -> bool:
        """Whether runs train models; worst-case observations are drawn directly."""
        return self is not Canary.WORST_CASE


class Score(_Choice):
    """What a run is observed by, and so scored by.

    Attributes:
        FINAL_SUM: worst_case; the sum of all noisy gradients up to the step.
        TRANSCRIPT: worst_case; every noisy gradient up to the step (visible state).
        COORDINATE: gradient; the change of the canary's coordinate.
        LOGIT_DIFFERENCE: input canaries; logit of the target minus logit of its substitute.
    """

    FINAL_SUM = "final_sum"
    TRANSCRIPT = "transcript"
    COORDINATE = "coordinate"
    LOGIT_DIFFERENCE = "logit_difference"


# The scores that a canary can have, the default first.
SCORES_OF = {
    Canary.WORST_CASE: (Score.FINAL_SUM, Score.TRANSCRIPT),
    Canary.GRADIENT: (Score.COORDINATE,),
    Canary.CRAFTED_INPUT: (Score.LOGIT_DIFFERENCE,),
    Canary.MISLABELED: (Score.LOGIT_DIFFERENCE,),
    Canary.NATURAL: (Score.LOGIT_DIFFERENCE,),
}


class Conversion(_Choice):
    """How bounds on error rates become an epsilon.

    Attributes:
        GDP: through Gaussian differential privacy (Dong et al., 2022; Nasr et al., 2023).
        DIRECT: from the definition of (epsilon, delta)-DP (Kairouz et al., 2015).
    """

    GDP = "gdp"
    DIRECT = "direct"


class ThresholdRule(_Choice):
    """How the threshold of the reported bound is chosen.

    Attributes:
        SIMULTANEOUS: the best of all thresholds, under error bounds that hold at all of them at
            once. Valid; the default.
        SPLIT: the best threshold of one half of the runs, evaluated on the other half. Valid.
        FIXED: given before the scores were seen. Valid.
        IN_SAMPLE: the best of all thresholds, each under a bound that holds at that threshold
            alone, as most papers report. NOT valid at its stated level.
    """

    SIMULTANEOUS = "simultaneous"
    SPLIT = "split"
    FIXED = "fixed"
    IN_SAMPLE = "in_sample"

    @property
    def is_valid(self) -> bool:
        """Whether the bound holds at its stated significance."""
        return self is not ThresholdRule.IN_SAMPLE
