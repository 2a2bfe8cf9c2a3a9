"""Names and settings of the stages that train models, and the streams of their randomness."""

import re
from enum import IntEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from dpcanary.adjacency import Adjacency
from dpcanary.choice import Choice
from dpcanary.closed_model import ClosedModel
from dpcanary.errors import suggestion
from dpcanary.observations import Observation


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


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    BATCHES = 2  # Poisson sampling of a run
    NOISE = 3  # DP-SGD noise of a run
    SIMULATION = 4  # Poisson sampling of simulated trainings
    INITIALISATION = 6  # random parameters of a run, or of all
    FIXED_BATCHES = 7  # the order of records in each epoch of known batches
    OUT_OF_SPAN = 8  # a run's noise outside the span of its records
    WORLDS = 10  # the world of each slot of a run
    SIMULATED_NOISE = 17  # DP-SGD noise of a simulated training
    VIEWS = 20  # flips and shifts of a run's images
    PRETRAINING_BATCHES = 21  # the order of public records in each epoch of pretraining


_KINDS = [kind.value for kind in ModelKind]
_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


def _kind_or_reference(value: Any) -> Any:
    """A kind by its name; a reference to a function as it is."""
    if isinstance(value, str) and re.fullmatch(_PATTERN, value):
        return value
    if value in _KINDS:
        return ModelKind(value)
    raise ValueError(
        f"unknown name, {suggestion(str(value), _KINDS)} (or give a function that makes your own"
        " model, as package.module:function)"
    )


# A kind of ours, or the function without arguments that makes the user's own `torch.nn.Module`.
ModelName = Annotated[
    ModelKind | str,
    BeforeValidator(_kind_or_reference),
    WithJsonSchema({"anyOf": [{"enum": _KINDS}, {"type": "string", "pattern": _PATTERN}]}),
]


def is_own(model: ModelKind | str) -> bool:
    """Whether a model is the user's own."""
    return not isinstance(model, ModelKind)


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]


class PretrainingSettings(ClosedModel):
    """How the parameters are made that all runs start from: by training on public records.

    This training is without privacy. The learning rate and its schedule are ours.
    """

    dataset: str | None = Field(
        default=None,
        description="whose num_records records are trained on, and are public here; by default the"
        " auxiliary records of the audit's dataset",
    )
    num_steps: _Count = Field(description="training steps")
    batch_size: _Count = Field(default=128, description="records of a step")
    optimizer: Optimizer = Field(
        default=Optimizer.MOMENTUM, description="how gradients are applied"
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of optimizer `momentum`")
    learning_rate: _Positive = Field(default=0.05, description="at the first step")
    learning_rate_schedule: LearningRateSchedule = Field(
        default=LearningRateSchedule.COSINE, description="how the learning rate falls"
    )


class ModelStage(ClosedModel):
    """A model, its random parameters and its loss.

    `activation` is None unless the model is an `mlp`, `width` and `logit_scale` unless it is
    a `resnet9`, and `initial_weights` if training starts from zeros. `pretraining` is None if the
    parameters are random.
    """

    model: ModelName
    model_seed: int
    hidden_sizes: tuple[int, ...]
    activation: Activation | None
    width: int | None
    logit_scale: float | None
    initial_weights: InitialWeights | None
    loss: Loss
    pretraining: PretrainingSettings | None


class PretrainingStage(ModelStage):
    """A model that is pretrained."""

    pretraining: PretrainingSettings


class ReferenceStage(ModelStage):
    """A model and its descent: all settings of the reference model, trained without privacy.

    `momentum` is None unless the optimiser has it.
    """

    initialisation: Initialisation
    optimizer: Optimizer
    momentum: float | None
    learning_rate: float
    learning_rate_schedule: LearningRateSchedule
    num_steps: int


class MechanismStage(ReferenceStage):
    """DP-SGD, except for its noise multiplier.

    `max_grad_norm` is None in training without privacy, which clips no gradients.
    `augmentation_multiplicity` is None if records are not augmented.
    """

    seed: int
    adjacency: Adjacency
    sampling: Sampling
    sample_rate: float
    batch_size: int | None
    canary_period: int | None
    max_grad_norm: float | None
    augmentation_multiplicity: int | None


class TrainingStage(MechanismStage):
    """What a run depends on, besides its noise multiplier, data and canaries."""

    observe: Observation
    worlds: WorldAssignment
    record_steps: tuple[int, ...]
