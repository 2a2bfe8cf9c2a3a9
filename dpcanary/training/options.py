"""The options of training, by name."""

from dpcanary.choice import Choice


class ModelKind(Choice):
    """What is trained.

    Attributes:
        LINEAR: a linear head with bias on flat features.
        MLP: a multilayer perceptron on flat features.
        CONVNET: LeNet-5 on images of shape (3, 32, 32).
        RESNET18: ResNet-18 on images, with group norm in place of batch norm.
        RESNET9: ResNet-9 on images of shape (3, 32, 32), of any width.
        WRN16_4: WRN-16-4 on images, with group norm and standardised filters.
    """

    LINEAR = "linear"
    MLP = "mlp"
    CONVNET = "convnet"
    RESNET18 = "resnet18"
    RESNET9 = "resnet9"
    WRN16_4 = "wrn16_4"


class Activation(Choice):
    """What comes between the layers of a perceptron."""

    TANH = "tanh"
    RELU = "relu"
    SIGMOID = "sigmoid"


class LearningRateSchedule(Choice):
    """The factor on the learning rate at step t of T, counted from 0.

    Attributes:
        CONSTANT: 1.
        LINEAR: 1 - t / T.
        COSINE: (1 + cos(pi t / T)) / 2.
    """

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Optimizer(Choice):
    """What a noisy gradient does to the parameters.

    Attributes:
        SGD: plain descent.
        MOMENTUM: descent along a decaying sum of gradients, as in torch.optim.SGD.
        ADAM: as in torch.optim.Adam.
    """

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"


class Sampling(Choice):
    """How the batch of a step is chosen.

    Attributes:
        POISSON: every record enters with probability q, independently in every run and step.
        FIXED: batches of one size, the same in every run and known to the adversary. The canary
            is inserted in every k-th step (Cebere et al., Algorithm 4).
    """

    POISSON = "poisson"
    FIXED = "fixed"


class Initialisation(Choice):
    """Where training starts.

    Attributes:
        ZEROS: all parameters are 0.
        FIXED: every run starts from the module's parameters, which the adversary knows.
        PER_RUN: every run draws random parameters of its own.
    """

    ZEROS = "zeros"
    FIXED = "fixed"
    PER_RUN = "per_run"


class InitialWeights(Choice):
    """How random initial parameters are drawn, by the run or once for all.

    Attributes:
        PYTORCH: as PyTorch initialises each layer.
        KAIMING: weights of linear and convolutional layers uniform with variance 2 / fan-in (He et
            al., 2015), biases 0.
        XAVIER: weights uniform with variance 2 / (fan-in + fan-out) (Glorot and Bengio, 2010),
            biases 0.
    """

    PYTORCH = "pytorch"
    KAIMING = "kaiming"
    XAVIER = "xavier"


class Loss(Choice):
    """What a model minimises.

    Attributes:
        CROSS_ENTROPY: cross-entropy of the softmax over the outputs.
        BINARY_CROSS_ENTROPY: cross-entropy of the sigmoid of each output, averaged over outputs.
    """

    CROSS_ENTROPY = "cross_entropy"
    BINARY_CROSS_ENTROPY = "binary_cross_entropy"


class WorldAssignment(Choice):
    """Which world each slot of each run is in.

    Attributes:
        ALTERNATE: runs with an even index are in world 0, the others in world 1. For one slot.
        COINS: a fair coin for every slot of every run.
        HALVES: in every run, half of the slots are in world 0; which half is drawn at random.
    """

    ALTERNATE = "alternate"
    COINS = "coins"
    HALVES = "halves"

    @classmethod
    def by_default(cls, num_slots: int) -> "WorldAssignment":
        """The assignment for runs with this many slots, where none is given."""
        return cls.COINS if num_slots > 1 else cls.ALTERNATE
