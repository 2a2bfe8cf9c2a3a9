"""What each stage of the workflow is told: small closed models, passed as JSON.

A stage reruns when one of *its* settings changes, so none is told more than it uses.
"""

import json

from pydantic import BaseModel, ConfigDict

from dpcanary.adjacency import Adjacency
from dpcanary.vocabulary import (
    Activation,
    Canary,
    Conversion,
    Initialisation,
    LearningRateSchedule,
    Loss,
    ModelKind,
    Optimizer,
    Precision,
    Sampling,
    Score,
    ThresholdRule,
)


class Model(BaseModel):
    """Frozen; refuses unknown keys and silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def to_json(self) -> str:
        """Compact JSON with sorted keys: the same settings always give the same text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


class SourceStage(Model):
    """Which records are read; the seed is of sources that are generated."""

    source: str
    max_records: int | None
    num_test: int | None
    seed: int


class FeaturesStage(SourceStage):
    """Which records are encoded, and by what."""

    encoder: str
    encoder_revision: str | None


class DatasetStage(SourceStage):
    """Which records are private, auxiliary and test records."""

    num_records: int
    balanced: bool
    num_auxiliary: int | None


class NoiseStage(Model):
    """What fixes the noise multiplier; `delta` only where it is calibrated to an epsilon."""

    adjacency: Adjacency
    sample_rate: float
    num_steps: int
    noise_multiplier: float | None
    target_epsilon: float | None
    delta: float | None


class AccountingStage(Model):
    """What the accounted upper bounds depend on, beside the noise multiplier."""

    sample_rate: float
    record_steps: tuple[int, ...]
    canary_period: int | None
    delta: float

    @property
    def insertions(self) -> tuple[int, ...]:
        """Steps up to each recorded one in which the canary may come in: these are accounted."""
        return tuple(step // (self.canary_period or 1) for step in self.record_steps)


class ReferenceStage(Model):
    """A model and its descent: what the reference, trained without privacy, depends on."""

    model: ModelKind
    model_seed: int
    hidden_sizes: tuple[int, ...]
    activation: Activation
    initialisation: Initialisation
    loss: Loss
    optimizer: Optimizer
    momentum: float
    learning_rate: float
    learning_rate_schedule: LearningRateSchedule
    num_steps: int


class MechanismStage(ReferenceStage):
    """DP-SGD, beside its noise multiplier."""

    seed: int
    canary: Canary
    adjacency: Adjacency
    sampling: Sampling
    sample_rate: float
    batch_size: int | None
    canary_period: int | None
    max_grad_norm: float


class CanaryStage(MechanismStage):
    """What a canary is made from, beside data and reference."""

    crafting_steps: int
    crafting_step_size: float


class TrainingStage(MechanismStage):
    """What a run depends on, beside its noise multiplier, data and canary."""

    score: Score
    precision: Precision
    record_steps: tuple[int, ...]


class ScoringStage(Model):
    """Which runs an audit has, what they must have been told, how they are cut into repeats."""

    training: TrainingStage
    num_runs: int
    num_repeats: int


class EstimationStage(Model):
    """How scores become bounds."""

    delta: float
    significance: float
    threshold_rules: tuple[ThresholdRule, ...]
    conversions: tuple[Conversion, ...]
