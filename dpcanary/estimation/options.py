"""The names of conversions, threshold rules and kinds of independence."""

from dpcanary.choice import Choice


class Conversion(Choice):
    """How bounds on error rates become an epsilon.

    Attributes:
        GDP: through Gaussian differential privacy (Dong et al., 2022; Nasr et al., 2023).
        DIRECT: from the definition of (epsilon, delta)-DP (Kairouz et al., 2015).
    """

    GDP = "gdp"
    DIRECT = "direct"


class ThresholdRule(Choice):
    """How the threshold of the reported bound is chosen. Plugins may add rules by name.

    Attributes:
        SIMULTANEOUS: the best of all thresholds, under bounds on the error rates that hold at
            all thresholds at once. Valid; the default.
        SPLIT: the best threshold of one half of the runs, evaluated on the other half. Valid.
        FIXED: a threshold given before the scores were seen. Valid.
        IN_SAMPLE: the best of all thresholds, each under bounds that hold only at that one
            threshold. Most papers report this. NOT valid at its stated significance.
    """

    SIMULTANEOUS = "simultaneous"
    SPLIT = "split"
    FIXED = "fixed"
    IN_SAMPLE = "in_sample"


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
