"""Settings of the stages that train one model: the reference, and simulations of a run."""

from dpcanary.adjacency import Adjacency
from dpcanary.closed_model import ClosedModel
from dpcanary.training.options import (
    Activation,
    Initialisation,
    InitialWeights,
    LearningRateSchedule,
    Loss,
    ModelKind,
    Optimizer,
    Sampling,
)


class ReferenceStage(ClosedModel):
    """A model and its descent: all settings of the reference model, trained without privacy.

    `activation` is None unless the model is an `mlp`, `width` and `logit_scale` unless it is
    a `resnet9`, `momentum` unless the optimiser has it, and `initial_weights` if training starts
    from zeros.
    """

    model: ModelKind
    model_seed: int
    hidden_sizes: tuple[int, ...]
    activation: Activation | None
    width: int | None
    logit_scale: float | None
    initialisation: Initialisation
    initial_weights: InitialWeights | None
    loss: Loss
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
