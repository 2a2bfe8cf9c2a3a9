"""The names of conversions, threshold rules and kinds of independence."""

from dpcanary.choice import Choice


class Conversion(Choice):
    """Among which trade-off curves the mechanism's is looked for, and how it gives an epsilon.

    Attributes:
        GDP: through Gaussian differential privacy (Dong et al., 2022; Nasr et al., 2023).
        SUBSAMPLED_GAUSSIAN: through the exact trade-off curves of DP-SGD with a given sample rate,
            number of steps and adjacency, and any noise.
        DIRECT: from the definition of (epsilon, delta)-DP (Kairouz et al., 2015).
    """

    GDP = "gdp"
    SUBSAMPLED_GAUSSIAN = "subsampled_gaussian"
    DIRECT = "direct"


class ThresholdRule(Choice):
    """How scores become a bound. Plugins may add rules by name.

    Attributes:
        COMBINED: the larger of two statistics, calibrated jointly: the best of all thresholds, and
            the AUC (with conversion `direct`, two ways to find the best threshold). Valid; the
            default.
        CALIBRATED: the best of all thresholds, as IN_SAMPLE finds it, calibrated by the exact null
            distribution of the best. Valid.
        RANK_SUM: the AUC (Mann and Whitney), calibrated by its exact null distribution. It has no
            threshold. Valid.
        SIMULTANEOUS: the best of all thresholds, under bounds on the error rates that hold at
            all thresholds at once. Valid.
        SPLIT: the best threshold of one half of the runs, evaluated on the other half. Valid.
        FIXED: a threshold given before the scores were seen. Valid.
        IN_SAMPLE: the best of all thresholds, each under bounds that hold only at that one
            threshold. Most papers report this. NOT valid at its stated significance.
        STEINKE, MAHLOUJIFAR, ORDER_STATISTIC: a share of all slots is guessed, those with the
            highest and the lowest scores; see `OneRunMethod`. Valid if the worlds of slots are
            fair coins; the last one for independent slots alone.
    """

    COMBINED = "combined"
    CALIBRATED = "calibrated"
    RANK_SUM = "rank_sum"
    SIMULTANEOUS = "simultaneous"
    SPLIT = "split"
    FIXED = "fixed"
    IN_SAMPLE = "in_sample"
    STEINKE = "steinke"
    MAHLOUJIFAR = "mahloujifar"
    ORDER_STATISTIC = "order_statistic"


# The rules whose statistic is compared with its simulated null distribution.
CALIBRATED_RULES = (ThresholdRule.COMBINED, ThresholdRule.CALIBRATED, ThresholdRule.RANK_SUM)
# Of all slots, in audits whose bound is near the largest that they can prove.
GUESSED_SHARE = 0.25
# The rules that guess the worlds of slots.
GUESSING_RULES = (ThresholdRule.STEINKE, ThresholdRule.MAHLOUJIFAR, ThresholdRule.ORDER_STATISTIC)
# Of conversion `subsampled_gaussian`.
LEAST_EXACT_DELTA, LARGEST_EXACT_DELTA = 1e-11, 0.01
# Smaller ones would need too many simulations.
LEAST_CALIBRATED_SIGNIFICANCE = 0.001


class Independence(Choice):
    """Which scores of an audit with several slots a bound treats as independent.

    Attributes:
        RUNS: the runs. Each slot gets a bound of its own, from its scores in all runs. This
            assumes nothing about the slots of a run.
        SLOTS: all slots of all runs, pooled into one bound. This assumes that the slots of a run
            do not influence each other and that their scores have the same distributions.
    """

    RUNS = "runs"
    SLOTS = "slots"
