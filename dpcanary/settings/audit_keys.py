"""The keys of an audit in a config, with their defaults and limits."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from dpcanary.adjacency import Adjacency
from dpcanary.adversaries.catalogue import BUILT_IN
from dpcanary.adversaries.options import Ranking, Simulation
from dpcanary.closed_model import ClosedModel
from dpcanary.landscape.options import LandscapeShape
from dpcanary.metagradients.settings import MetagradientSettings
from dpcanary.settings.fields import Count, Name, NonNegative, Positive
from dpcanary.training.model_names import ModelName
from dpcanary.training.options import (
    Activation,
    Initialisation,
    InitialWeights,
    LearningRateSchedule,
    Loss,
    ModelKind,
    Optimizer,
    Sampling,
    WorldAssignment,
)
from dpcanary.training.pretraining_settings import PretrainingSettings

# An editor offers the names of this package and accepts those of plugins.
CanaryName = Annotated[str, WithJsonSchema({"anyOf": [{"enum": [*BUILT_IN]}, {"type": "string"}]})]


class AuditKeys(ClosedModel):
    """What a config may say about one audit; `audit.Audit` checks that it fits together."""

    canary: CanaryName = Field(description="how the neighbouring dataset differs")
    score: str | None = Field(
        None, description="how runs are scored; by default by the canary's first score"
    )
    adjacency: Adjacency = Field(Adjacency.SUBSTITUTE, description="audited neighbouring relation")
    num_slots: Count = Field(1, description="canaries per run, each with its own target record")
    worlds: WorldAssignment | None = Field(
        None,
        description="how the world of each slot is chosen; by default `alternate` with one slot,"
        " else `coins`",
    )
    dataset: Name | None = Field(None, description="from `datasets`; worst_case needs none")
    model: ModelName = Field(
        ModelKind.LINEAR,
        description="what is trained: a kind, or a function of your own without arguments that"
        " makes a `torch.nn.Module`, as `package.module:function`; it is looked up in the folder"
        " that you run in, too",
    )
    hidden_sizes: tuple[Count, ...] = Field((), description="widths of an `mlp`'s hidden layers")
    activation: Activation = Field(Activation.TANH, description="between the layers of an `mlp`")
    width: Count = Field(64, description="channels of the first layer of a `resnet9`, even")
    logit_scale: Positive = Field(0.125, description="factor on the logits of a `resnet9`")
    initialisation: Initialisation | None = Field(
        None,
        description="initial parameters; by default `zeros` for `linear`, `fixed` for a model of"
        " your own, else `per_run`",
    )
    initial_weights: InitialWeights | None = Field(
        None,
        description="how random initial parameters are drawn: by default as PyTorch does; not for"
        " initialisation `zeros`",
    )
    pretraining: PretrainingSettings | None = Field(
        None,
        description="how the parameters are made that all runs start from, by training on public"
        " records; by default they are random, or zeros",
    )
    loss: Loss = Field(Loss.CROSS_ENTROPY, description="what is minimised")
    sampling: Sampling = Field(Sampling.POISSON, description="how the batch of a step is chosen")
    sample_rate: float = Field(1.0, gt=0, le=1, description="rate q of Poisson sampling")
    batch_size: Count | None = Field(None, description="of `fixed` batches")
    canary_period: Count | None = Field(
        None, description="with `fixed` batches, the canary is added at every k-th step"
    )
    noise_multiplier: NonNegative | None = Field(
        None,
        description="noise standard deviation sigma, in units of max_grad_norm; 0 trains without"
        " privacy: gradients are not clipped either",
    )
    target_epsilon: Positive | None = Field(
        None, description="calibrate the noise to this epsilon under the audited adjacency"
    )
    max_grad_norm: Positive = Field(1.0, description="clipping norm C of a record's gradient")
    augmentation_multiplicity: Count | None = Field(
        None,
        description="random views (flips and shifts) of each image in every step, over which its"
        " gradient is averaged before clipping; by default the image itself",
    )
    num_steps: Count = Field(description="training steps T")
    optimizer: Optimizer = Field(Optimizer.SGD, description="how noisy gradients are applied")
    momentum: float = Field(0.9, ge=0, lt=1, description="of optimizer `momentum`")
    learning_rate: Positive = Field(0.01, description="of the optimizer, at the first step")
    learning_rate_schedule: LearningRateSchedule = Field(
        LearningRateSchedule.CONSTANT, description="how the learning rate falls"
    )
    num_runs: Count = Field(description="models trained; with one slot, even and at least 4")
    num_repeats: Count = Field(1, description="independent estimates, of num_runs runs each")
    looks: tuple[Count, ...] = Field(
        (),
        description="numbers of runs at which the bounds are looked at and hold jointly; fixed"
        " before the first run. num_runs must be one of them, and may grow to the next;"
        " threshold_rules may then have calibrated rules only",
    )
    record_every: Count | None = Field(
        None, description="steps between estimates; by default only the last step gets one"
    )
    runs_per_shard: Count = Field(500, description="models trained by one job")
    runs_at_once: Count | None = Field(
        None,
        description="models in memory at once, per thread; by default the fastest number that"
        " fits in half of the free memory",
    )
    crafting_steps: Count = Field(5000, description="descent steps of canary crafted_input")
    crafting_step_size: Positive = Field(
        0.01, description="step size of that descent (Adam), in units of a feature"
    )
    simulation: Simulation = Field(
        Simulation.NOISELESS,
        description="how canary simulated_dimension simulates the training: clipped and without"
        " noise, without both, or with both",
    )
    ranking: Ranking = Field(
        Ranking.PER_STEP,
        description="what canary simulated_dimension ranks coordinates by: their updates in every"
        " step, or how far they are from the start at the end",
    )
    num_simulations: Count = Field(
        4, description="trainings that canary simulated_dimension simulates"
    )
    metagradient: MetagradientSettings = Field(
        default_factory=MetagradientSettings,
        description="how canary metagradient is made",
    )
    landscape: LandscapeShape | None = Field(
        None, description="which way the loss of canary loss_landscape pushes; by default diverging"
    )
    landscape_threshold: float | None = Field(
        None,
        allow_inf_nan=False,
        description="where it changes direction, in units of max_grad_norm; by default in the"
        " middle between the worlds",
    )
    seed: int | None = Field(
        None,
        ge=0,
        description="by default made from the experiment's seed and the name of the runs",
    )
