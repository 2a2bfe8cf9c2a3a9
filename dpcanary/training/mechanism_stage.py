"""Settings of the stages that train one model: pretraining, the reference, simulations of a run."""

from dpcanary.adjacency import Adjacency
from dpcanary.closed_model import ClosedModel
from dpcanary.training.model_names import ModelName
from dpcanary.training.options import (
    Activation,
    Initialisation,
    InitialWeights,
    LearningRateSchedule,
    Loss,
    Optimizer,
    Sampling,
)
from dpcanary.training.pretraining_settings import PretrainingSettings


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
