"""What each stage of the workflow is told: small closed models, passed as JSON.

A stage reruns when one of *its* settings changes, so none is told more than it uses.
"""

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dpcanary.adjacency import Adjacency
from dpcanary.vocabulary import Canary, Conversion, Score, ThresholdRule


class Model(BaseModel):
    """Frozen; refuses unknown keys and silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def to_json(self) -> str:
        """Compact JSON with sorted keys: the same settings always give the same text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


class DatasetStage(Model):
    """Which records are private, auxiliary and test records."""

    source: str
    num_records: int
    seed: int


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
    delta: float


class ReferenceStage(Model):
    """The reference model, trained without privacy on the private records."""

    model: Literal["linear"]
    num_steps: int
    learning_rate: float


class CanaryStage(Model):
    """What a canary is made from, beside data and reference."""

    seed: int
    canary: Canary
    sample_rate: float
    max_grad_norm: float
    num_steps: int
    learning_rate: float
    crafting_steps: int
    crafting_step_size: float


class TrainingStage(Model):
    """What a run depends on, beside its noise multiplier, data and canary."""

    seed: int
    canary: Canary
    score: Score
    adjacency: Adjacency
    model: Literal["linear"]
    sample_rate: float
    max_grad_norm: float
    learning_rate: float
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
