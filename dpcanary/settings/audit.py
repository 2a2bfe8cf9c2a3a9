"""What a config says about one audit."""

from typing import Annotated

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from dpcanary.adjacency import Adjacency
from dpcanary.adversaries.adversary import Adversary
from dpcanary.adversaries.catalogue import BUILT_IN, adversary, adversary_names
from dpcanary.closed_model import ClosedModel
from dpcanary.errors import suggestion
from dpcanary.landscape.options import LandscapeShape
from dpcanary.settings.fields import Count, Name, Positive
from dpcanary.settings.sampling import check_sampling
from dpcanary.training.options import (
    Activation,
    Initialisation,
    LearningRateSchedule,
    Loss,
    ModelKind,
    Optimizer,
    Precision,
    Sampling,
    WorldAssignment,
)

# An editor offers the names of this package and accepts those of plugins.
CanaryName = Annotated[str, WithJsonSchema({"anyOf": [{"enum": [*BUILT_IN]}, {"type": "string"}]})]
# An adversary that draws a process trains no model and does not use these.
_OF_DATA_AND_MODEL = ("dataset", "model", "initialisation", "loss", "precision", "runs_at_once")
_OF_OPTIMIZER = ("optimizer", "learning_rate", "learning_rate_schedule")
_OF_MLP = ("hidden_sizes", "activation")
_OF_CRAFTING = ("crafting_steps", "crafting_step_size")
_OF_LANDSCAPE = ("landscape", "landscape_threshold")


class Audit(ClosedModel):
    """One training set-up whose epsilon is estimated."""

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
    model: ModelKind = Field(ModelKind.LINEAR, description="what is trained")
    hidden_sizes: tuple[Count, ...] = Field((), description="widths of an `mlp`'s hidden layers")
    activation: Activation = Field(Activation.TANH, description="between the layers of an `mlp`")
    initialisation: Initialisation | None = Field(
        None, description="initial parameters; by default `zeros` for `linear`, else `per_run`"
    )
    loss: Loss = Field(Loss.CROSS_ENTROPY, description="what is minimised")
    sampling: Sampling = Field(Sampling.POISSON, description="how the batch of a step is chosen")
    sample_rate: float = Field(1.0, gt=0, le=1, description="rate q of Poisson sampling")
    batch_size: Count | None = Field(None, description="of `fixed` batches")
    canary_period: Count | None = Field(
        None, description="with `fixed` batches, the canary is added at every k-th step"
    )
    noise_multiplier: Positive | None = Field(
        None, description="noise standard deviation sigma, in units of max_grad_norm"
    )
    target_epsilon: Positive | None = Field(
        None, description="calibrate the noise to this epsilon under the audited adjacency"
    )
    max_grad_norm: Positive = Field(1.0, description="clipping norm C of a record's gradient")
    num_steps: Count = Field(description="training steps T")
    optimizer: Optimizer = Field(Optimizer.SGD, description="how noisy gradients are applied")
    momentum: float = Field(0.9, ge=0, lt=1, description="of optimizer `momentum`")
    learning_rate: Positive = Field(0.01, description="of the optimizer, at the first step")
    learning_rate_schedule: LearningRateSchedule = Field(
        LearningRateSchedule.CONSTANT, description="how the learning rate falls"
    )
    precision: Precision = Field(
        Precision.FLOAT32, description="of matrix products in training; see docs/validity.md"
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

    @field_validator("canary")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in adversary_names():
            raise ValueError(f"unknown name, {suggestion(name, adversary_names())}")
        return name

    @model_validator(mode="after")
    def _training_is_consistent(self) -> "Audit":
        entry = self.adversary
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise ValueError("give either noise_multiplier or target_epsilon")
        if self.adjacency not in entry.adjacencies:
            known = " and ".join(entry.adjacencies)
            raise ValueError(f"canary {self.canary} audits adjacency {known}, not {self.adjacency}")
        entry.score(self.score)
        if self.dataset is None and entry.is_trained:
            raise ValueError(f"canary {self.canary} needs a dataset")
        if self.num_steps % (self.record_every or 1):
            raise ValueError(f"record_every {self.record_every} does not divide num_steps")
        if self.model is ModelKind.MLP and not self.hidden_sizes:
            raise ValueError("model mlp needs hidden_sizes")
        small = self.model in (ModelKind.LINEAR, ModelKind.MLP)
        if self.precision is not Precision.FLOAT32 and not small:
            raise ValueError(f"precision {self.precision} is for models linear and mlp")
        if self.initialisation is Initialisation.ZEROS and self.model is not ModelKind.LINEAR:
            raise ValueError("initialisation zeros is a saddle point of every model except linear")
        return self

    @model_validator(mode="after")
    def _slots_are_consistent(self) -> "Audit":
        if self.num_slots == 1:
            if self.num_runs < 4 or self.num_runs % 2:
                raise ValueError(
                    f"num_runs is {self.num_runs}; it must be even, for two worlds, and at least 4"
                )
            if self.worlds not in (None, WorldAssignment.ALTERNATE):
                raise ValueError(f"worlds {self.worlds} needs num_slots above 1")
        elif not self.is_trained:
            raise ValueError(f"canary {self.canary} has only one slot")
        elif self.worlds is WorldAssignment.ALTERNATE:
            raise ValueError("worlds alternate is for num_slots 1; use coins or halves")
        elif self.worlds is WorldAssignment.HALVES and self.num_slots % 2:
            raise ValueError("worlds halves needs an even num_slots")
        return self

    @model_validator(mode="after")
    def _looks_are_consistent(self) -> "Audit":
        if not self.looks:
            return self
        if self.num_slots > 1:
            raise ValueError("looks are for audits with one slot")
        if any(look % 2 for look in self.looks) or [*self.looks] != sorted({*self.looks}):
            raise ValueError("looks must be even numbers of runs that rise")
        if self.num_runs not in self.looks:
            raise ValueError(f"num_runs {self.num_runs} must be one of the looks")
        return self

    @model_validator(mode="after")
    def _sampling_is_consistent(self) -> "Audit":
        check_sampling(self)
        return self

    @property
    def adversary(self) -> Adversary:
        """The canary's entry in the catalogue."""
        return adversary(self.canary)

    @property
    def is_trained(self) -> bool:
        """Whether its runs train models."""
        return self.adversary.is_trained

    @property
    def unused_keys(self) -> set[str]:
        """Keys that the chosen canary, model and optimizer do not use."""
        unused = {*_OF_CRAFTING, *_OF_LANDSCAPE} - {*self.adversary.settings}
        if not self.is_trained:
            unused |= {*_OF_DATA_AND_MODEL, *_OF_OPTIMIZER}
        if not self.is_trained or self.model is not ModelKind.MLP:
            unused |= {*_OF_MLP}
        if not self.is_trained or self.optimizer is not Optimizer.MOMENTUM:
            unused.add("momentum")
        return unused

    @property
    def total_runs(self) -> int:
        """Runs of all repeats."""
        return self.num_runs * self.num_repeats

    @property
    def record_steps(self) -> tuple[int, ...]:
        """The recorded steps, ascending."""
        every = self.record_every or self.num_steps
        return tuple(range(every, self.num_steps + 1, every))

    @property
    def accounted_steps(self) -> int:
        """Steps in which the canary may be used."""
        return 1 if self.adversary.in_first_step else self.num_steps // (self.canary_period or 1)

    @property
    def shards(self) -> list[str]:
        """Names of the shards. They are indices, so more runs add names and change none."""
        return [f"{index:05d}" for index in range(-(-self.total_runs // self.runs_per_shard))]

    def runs_of(self, shard: str) -> range:
        """The run indices of a shard."""
        first = int(shard) * self.runs_per_shard
        return range(self.total_runs)[first : first + self.runs_per_shard]
