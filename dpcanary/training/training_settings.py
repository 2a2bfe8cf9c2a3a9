"""Names and settings of the stages that train models, and the streams of their randomness."""

import re
from enum import IntEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from dpcanary.core.adjacency import ADJACENCIES, Adjacency
from dpcanary.core.argument_checks import Choice
from dpcanary.core.setting_fields import ClosedModel, Count, Flag, Name, Positive, Shown, UsedIf
from dpcanary.data.observations import Observation
from dpcanary.errors import suggestion


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
        SHUFFLED: in each pass over the data, a random order of the records is cut into batches.
            For processes that are drawn; models are not trained so.
    """

    POISSON = "poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"


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
        CROSS_ENTROPY: cross-entropy of the softmax over the outputs, one for each class.
        BINARY_CROSS_ENTROPY: cross-entropy of the sigmoid of each output, averaged over outputs.
        LOGISTIC: binary cross-entropy with one output, for two classes.
        SQUARED_ERROR: squared difference between the one output and the label, a number.
    """

    CROSS_ENTROPY = "cross_entropy"
    BINARY_CROSS_ENTROPY = "binary_cross_entropy"
    LOGISTIC = "logistic"
    SQUARED_ERROR = "squared_error"

    @property
    def is_of_classes(self) -> bool:
        """Whether labels are classes; if not, they are numbers."""
        return self is not Loss.SQUARED_ERROR

    def num_outputs(self, num_classes: int) -> int:
        """Outputs of a model that is made for so many classes."""
        return 1 if self in (Loss.LOGISTIC, Loss.SQUARED_ERROR) else num_classes


class WorldAssignment(Choice):
    """Which world each slot of each run is in.

    Attributes:
        ALTERNATE: runs with an even index are in world 0, the others in world 1. For one slot.
        COINS: a fair coin for every slot of every run.
        HALVES: in every run, half of the slots are in world 0; which half is drawn at random.
        CANDIDATES: every slot holds one of several values, each with the same probability. Its
            world is the index of the value.
    """

    ALTERNATE = "alternate"
    COINS = "coins"
    HALVES = "halves"
    CANDIDATES = "candidates"

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
    DROPOUT = 37  # the units that dropout leaves out in a run's step
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


class PretrainingSettings(ClosedModel):
    """How the parameters are made that all runs start from: by training on public records.

    This training is without privacy. The learning rate and its schedule are ours.
    """

    dataset: str | None = Field(
        default=None,
        description="whose num_records records are trained on, and are public here; by default the"
        " auxiliary records of the audit's dataset",
    )
    num_steps: Count = Field(description="training steps")
    batch_size: Count = Field(default=128, description="records of a step")
    optimizer: Optimizer = Field(
        default=Optimizer.MOMENTUM, description="how gradients are applied"
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of optimizer `momentum`")
    learning_rate: Positive = Field(default=0.05, description="at the first step")
    learning_rate_schedule: LearningRateSchedule = Field(
        default=LearningRateSchedule.COSINE, description="how the learning rate falls"
    )


TRAINED = UsedIf(lambda audit: audit.is_trained)
_OF_MLP = UsedIf(lambda audit: audit.is_trained and audit.model is ModelKind.MLP)
_OF_RESNET9 = UsedIf(lambda audit: audit.is_trained and audit.model is ModelKind.RESNET9)
_OF_IMAGES = UsedIf(
    lambda audit: audit.is_trained and audit.model not in (ModelKind.LINEAR, ModelKind.MLP)
)
_OF_MOMENTUM = UsedIf(lambda audit: audit.is_trained and audit.optimizer is Optimizer.MOMENTUM)
_PRIVATE = UsedIf(lambda audit: audit.noise_multiplier != 0)
_STARTS = {
    Initialisation.ZEROS: "start at zero",
    Initialisation.FIXED: "fixed start",
    Initialisation.PER_RUN: "start of each run",
}


class DataKeys(ClosedModel):
    """The records that are trained on."""

    dataset: Annotated[Name | None, TRAINED, Shown(panel=True, of="")] = Field(
        None, description="from `datasets`; worst_case needs none"
    )


class ModelKeys(ClosedModel):
    """A model, its random parameters and its loss."""

    model: Annotated[
        ModelName, TRAINED, Shown(panel=True, line=True, common=True), Flag("The training")
    ] = Field(
        ModelKind.LINEAR,
        description="what is trained: a kind, or a function of your own without arguments that"
        " makes a `torch.nn.Module`, as `package.module:function`; it is looked up in the folder"
        " that you run in, too",
    )
    hidden_sizes: Annotated[tuple[Count, ...], _OF_MLP, Flag("The training", "--hidden-size")] = (
        Field((), description="widths of an `mlp`'s hidden layers")
    )
    activation: Annotated[Activation, _OF_MLP] = Field(
        Activation.TANH, description="between the layers of an `mlp`"
    )
    width: Annotated[Count, _OF_RESNET9] = Field(
        64, description="channels of the first layer of a `resnet9`, even"
    )
    logit_scale: Annotated[Positive, _OF_RESNET9] = Field(
        0.125, description="factor on the logits of a `resnet9`"
    )
    initial_weights: Annotated[InitialWeights | None, TRAINED, Shown("{} weights", line=True)] = (
        Field(
            None,
            description="how random initial parameters are drawn: by default as PyTorch does; not"
            " for initialisation `zeros`",
        )
    )
    pretraining: Annotated[
        PretrainingSettings | None, TRAINED, Shown("pretrained on {}", panel=True, line=True)
    ] = Field(
        None,
        description="how the parameters are made that all runs start from, by training on public"
        " records; by default they are random, or zeros",
    )
    loss: Annotated[Loss, TRAINED, Flag("The training")] = Field(
        Loss.CROSS_ENTROPY,
        description="what is minimised: `logistic` is binary cross-entropy with one output, for two"
        " classes; `squared_error` is for labels that are numbers",
    )


# Larger ones make models of numbers that mean nothing.
_LARGEST_RATE = 1e6


class DescentKeys(ClosedModel):
    """A descent on a model's loss."""

    initialisation: Annotated[
        Initialisation | None,
        TRAINED,
        Shown(_STARTS, panel=True, line=True, follows=("model", "pretraining")),
    ] = Field(
        None,
        description="initial parameters; by default `zeros` for `linear`, `fixed` for a model of"
        " your own, else `per_run`",
    )
    num_steps: Annotated[
        Count,
        Shown(
            "T = {:g}",
            axis="number of training steps T",
            follows=("canary_period",),
            of="all",
        ),
        Flag("The training"),
    ] = Field(description="training steps T")
    optimizer: Annotated[Optimizer, TRAINED, Flag("The training")] = Field(
        Optimizer.SGD, description="how noisy gradients are applied"
    )
    momentum: Annotated[float, _OF_MOMENTUM] = Field(
        0.9, ge=0, lt=1, description="of optimizer `momentum`"
    )
    learning_rate: Annotated[
        Positive,
        TRAINED,
        Shown("learning rate {:g}", panel=True, line=True, axis="learning rate", common=True),
        Flag("The training"),
    ] = Field(0.01, le=_LARGEST_RATE, description="of the optimizer, at the first step")
    learning_rate_schedule: Annotated[LearningRateSchedule, TRAINED] = Field(
        LearningRateSchedule.CONSTANT, description="how the learning rate falls"
    )


class SamplingKeys(ClosedModel):
    """How the batch of a step is chosen."""

    sampling: Annotated[Sampling, Shown()] = Field(
        Sampling.POISSON, description="how the batch of a step is chosen"
    )
    sample_rate: Annotated[
        float, Shown("q = {:g}", panel=True, common=True, of="all"), Flag("The training")
    ] = Field(1.0, gt=0, le=1, description="rate q of Poisson sampling")
    batch_size: Annotated[Count | None, Shown("known batches of {:g}", panel=True, line=True)] = (
        Field(None, description="of `fixed` batches")
    )
    batches_per_pass: Annotated[
        Count | None, Shown("{:g} batches in a pass", panel=True, line=True)
    ] = Field(
        None,
        description="with `shuffled` batches, how many a pass over the data has; each record is in"
        " one of them",
    )


class MechanismKeys(ClosedModel):
    """What DP-SGD does with a batch, except for its noise."""

    adjacency: Annotated[
        Adjacency, Shown(ADJACENCIES, panel=True, line=True, of="all"), Flag("The attack")
    ] = Field(Adjacency.SUBSTITUTE, description="audited neighbouring relation")
    canary_period: Annotated[
        Count | None, Shown("k = {:g}", panel=True, line=True, common=True)
    ] = Field(None, description="with `fixed` batches, the canary is added at every k-th step")
    max_grad_norm: Annotated[
        Positive,
        _PRIVATE,
        Shown("C = {:g}", panel=True, line=True, axis="clipping norm C", common=True),
        Flag("The training"),
    ] = Field(1.0, description="clipping norm C of a record's gradient")
    augmentation_multiplicity: Annotated[Count | None, _OF_IMAGES] = Field(
        None,
        description="random views (flips and shifts) of each image in every step, over which its"
        " gradient is averaged before clipping; by default the image itself",
    )


class ModelStage(ModelKeys):
    """A model; keys that it does not use have their defaults."""

    model_seed: int


class PretrainingStage(ModelStage):
    """A model that is pretrained."""

    pretraining: PretrainingSettings


class ReferenceStage(DescentKeys, ModelStage):
    """A model and its descent: all settings of the reference model, trained without privacy."""

    initialisation: Initialisation


class MechanismStage(MechanismKeys, SamplingKeys, ReferenceStage):
    """DP-SGD, except for its noise multiplier; without privacy, no gradient is clipped."""

    seed: int
    is_private: bool


class TrainingStage(MechanismStage):
    """What a run depends on, besides its noise multiplier, data and canaries."""

    observe: Observation
    worlds: WorldAssignment
    record_steps: tuple[int, ...]
