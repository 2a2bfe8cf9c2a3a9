"""What a config says of an audit."""

from pydantic import Field, model_validator

from dpcanary import stages
from dpcanary.adjacency import Adjacency
from dpcanary.settings.fields import Count, Name, Positive
from dpcanary.vocabulary import (
    SCORES_OF,
    Activation,
    Canary,
    Initialisation,
    LearningRateSchedule,
    Loss,
    ModelKind,
    Optimizer,
    Precision,
    Sampling,
    Score,
)


class Audit(stages.Model):
    """One training set-up that gets an estimate."""

    canary: Canary = Field(description="how the neighbouring dataset differs")
    score: Score | None = Field(None, description="what a run is scored by; by default canary's")
    adjacency: Adjacency = Field(
        Adjacency.SUBSTITUTE, description="the neighbouring relation that is audited"
    )
    dataset: Name | None = Field(None, description="from `datasets`; worst_case needs none")
    model: ModelKind = Field(ModelKind.LINEAR, description="what is trained")
    hidden_sizes: tuple[Count, ...] = Field((), description="widths of the layers inside an `mlp`")
    activation: Activation = Field(Activation.TANH, description="between the layers of an `mlp`")
    initialisation: Initialisation | None = Field(
        None,
        description="where runs start; by default `zeros` for `linear` and else `per_run`",
    )
    loss: Loss = Field(Loss.CROSS_ENTROPY, description="what is minimised")
    sampling: Sampling = Field(Sampling.POISSON, description="how a step's batch is chosen")
    sample_rate: float = Field(1.0, gt=0, le=1, description="rate q of Poisson sampling")
    batch_size: Count | None = Field(None, description="of `fixed` batches")
    canary_period: Count | None = Field(
        None, description="with `fixed` batches, the canary comes in at every k-th step"
    )
    noise_multiplier: Positive | None = Field(
        None, description="noise standard deviation sigma, in units of max_grad_norm"
    )
    target_epsilon: Positive | None = Field(
        None, description="calibrate the noise to this epsilon under the audited adjacency"
    )
    max_grad_norm: Positive = Field(1.0, description="clipping norm C of a record's gradient")
    num_steps: Count = Field(description="training steps T")
    optimizer: Optimizer = Field(Optimizer.SGD, description="what follows the noisy gradients")
    momentum: float = Field(0.9, ge=0, lt=1, description="of optimizer `momentum`")
    learning_rate: Positive = Field(0.01, description="of the optimizer, at the first step")
    learning_rate_schedule: LearningRateSchedule = Field(
        LearningRateSchedule.CONSTANT, description="how the learning rate falls"
    )
    precision: Precision = Field(
        Precision.FLOAT32, description="of matrix products in training; see docs/validity.md"
    )
    num_runs: int = Field(ge=4, multiple_of=2, description="models trained, half per world")
    num_repeats: Count = Field(1, description="independent estimates, of num_runs runs each")
    record_every: Count | None = Field(
        None, description="steps between estimates; without it the last step alone"
    )
    runs_per_shard: Count = Field(500, description="models trained by one job")
    runs_at_once: Count | None = Field(
        None,
        description="models in memory at once, per thread; by default as many as are fastest"
        " together and fit in half of the free memory",
    )
    crafting_steps: Count = Field(5000, description="descent steps of canary crafted_input")
    crafting_step_size: Positive = Field(
        0.01, description="step size of that descent (Adam), in units of a feature"
    )
    seed: int | None = Field(
        None,
        ge=0,
        description="of the audit's runs; by default made from the experiment's seed"
        " and the audit's name, so that audits are independent",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> "Audit":
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise ValueError("give either noise_multiplier or target_epsilon")
        if self.adjacency is not Adjacency.SUBSTITUTE and self.canary is not Canary.GRADIENT:
            raise ValueError(f"canary {self.canary} audits adjacency substitute alone")
        if self.score is not None and self.score not in SCORES_OF[self.canary]:
            raise ValueError(f"canary {self.canary} has the scores {[*SCORES_OF[self.canary]]}")
        if self.dataset is None and self.canary.is_trained:
            raise ValueError(f"canary {self.canary} needs a dataset")
        if self.num_steps % (self.record_every or 1):
            raise ValueError(f"record_every {self.record_every} does not divide num_steps")
        return self

    @model_validator(mode="after")
    def _model_is_consistent(self) -> "Audit":
        if (self.model is ModelKind.MLP) != bool(self.hidden_sizes):
            raise ValueError("model mlp, and it alone, needs hidden_sizes")
        small = self.model in (ModelKind.LINEAR, ModelKind.MLP)
        if self.precision is not Precision.FLOAT32 and not small:
            raise ValueError(f"precision {self.precision} is for models linear and mlp")
        if self.initialisation is Initialisation.ZEROS and self.model is not ModelKind.LINEAR:
            raise ValueError("initialisation zeros is a saddle of all models but linear")
        return self

    @model_validator(mode="after")
    def _sampling_is_consistent(self) -> "Audit":
        fixed = self.sampling is Sampling.FIXED
        if fixed != (self.batch_size is not None) or fixed != (self.canary_period is not None):
            raise ValueError("sampling fixed, and it alone, needs batch_size and canary_period")
        if not fixed and "sample_rate" not in self.model_fields_set:
            raise ValueError("sampling poisson needs sample_rate")
        if self.canary.is_trained and self.sample_rate < 1e-6:
            raise ValueError("sample_rate below 1e-6 is too coarse to be drawn from 32 bits")
        if fixed and (self.sample_rate != 1.0 or not self.canary.is_trained):
            raise ValueError("sampling fixed has no sample_rate, and no worst_case audit")
        if (self.record_every or self.num_steps) % (self.canary_period or 1):
            raise ValueError("canary_period must divide the steps between estimates")
        return self

    @property
    def total_runs(self) -> int:
        """Runs of all repeats."""
        return self.num_runs * self.num_repeats

    @property
    def shards(self) -> list[str]:
        """Names of the shards: indices, so that more runs only add names."""
        return [f"{index:05d}" for index in range(-(-self.total_runs // self.runs_per_shard))]

    def runs_of(self, shard: str) -> range:
        """The run indices of a shard."""
        first = int(shard) * self.runs_per_shard
        return range(first, min(first + self.runs_per_shard, self.total_runs))
