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


class ModelKind(_Choice):
    """What is trained.

    Attributes:
        LINEAR: a linear head with bias on flat features.
        MLP: a multilayer perceptron on flat features.
        CONVNET: LeNet-5 on images of 32 x 32 pixels: 62,006 parameters with 3 channels and 10
            classes.
        RESNET18: on images, with group norm in place of batch norm.
    """

    LINEAR = "linear"
    MLP = "mlp"
    CONVNET = "convnet"
    RESNET18 = "resnet18"


class Activation(_Choice):
    """What comes between the layers of a perceptron."""

    TANH = "tanh"
    RELU = "relu"
    SIGMOID = "sigmoid"


class LearningRateSchedule(_Choice):
    """What the learning rate is multiplied with at step t of T.

    Attributes:
        CONSTANT: 1.
        LINEAR: 1 - t / T.
        COSINE: (1 + cos(pi t / T)) / 2.
    """

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Optimizer(_Choice):
    """What a noisy gradient sum does to the parameters.

    Attributes:
        SGD: plain descent.
        MOMENTUM: descent along a decaying sum of gradients, as torch.optim.SGD.
        ADAM: as torch.optim.Adam.
    """

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"


class Sampling(_Choice):
    """How a step's batch is chosen.

    Attributes:
        POISSON: every record enters with probability q, in every run and step anew.
        FIXED: batches of one size are the same in every run and known to the adversary; the canary
            comes on top, in every k-th step (Cebere et al., Algorithm 4).
    """

    POISSON = "poisson"
    FIXED = "fixed"


class Initialisation(_Choice):
    """Where training starts.

    Attributes:
        ZEROS: all parameters 0.
        FIXED: the same random parameters in every run, known to the adversary.
        PER_RUN: random parameters of each run's own.
    """

    ZEROS = "zeros"
    FIXED = "fixed"
    PER_RUN = "per_run"


class Loss(_Choice):
    """What a model minimises.

    Attributes:
        CROSS_ENTROPY: of the softmax over the outputs.
        BINARY_CROSS_ENTROPY: of each output's sigmoid, averaged over the outputs.
    """

    CROSS_ENTROPY = "cross_entropy"
    BINARY_CROSS_ENTROPY = "binary_cross_entropy"


class Precision(_Choice):
    """Of the matrix products in training; sums, norms and noise are float32 in either.

    Attributes:
        FLOAT32: the default.
        BFLOAT16: inputs and results of products are rounded to 8 bits; docs/validity.md says what
            that does to epsilon.
    """

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


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
