"""A whole config: what all audits share, and the audits."""

from typing import Any, Literal, TypeVar

from pydantic import Field, model_validator

from dpcanary import stages
from dpcanary.settings.audit import Audit
from dpcanary.settings.dataset import Dataset
from dpcanary.settings.fields import Name, Probability
from dpcanary.settings.figure import Figure
from dpcanary.vocabulary import Conversion, ThresholdRule

Stage = TypeVar("Stage", bound=stages.Model)


class Settings(stages.Model):
    """Everything in a config but its audits."""

    experiment: Name = Field(description="results go to results/<experiment>/")
    seed: int = Field(0, ge=0, description="of all randomness")
    delta: Probability = Field(description="of (epsilon, delta)-DP, audited and accounted")
    significance: float = Field(
        0.05,
        ge=1e-6,
        lt=1,
        description="probability with which each single bound may exceed the truth",
    )
    threshold_rules: tuple[ThresholdRule, ...] = Field(
        (ThresholdRule.SIMULTANEOUS,), min_length=1, description="how thresholds are chosen"
    )
    conversions: tuple[Conversion, ...] = Field(
        (Conversion.GDP,), min_length=1, description="how error rates become an epsilon"
    )
    device: Literal["cpu", "cuda", "auto"] = Field("cpu", description="where models are trained")
    data_folder: str | None = Field(
        None,
        description="folder with local copies of downloads, datasets and encoders; by default the"
        " environment variable DPCANARY_DATA",
    )
    datasets: dict[Name, Dataset] = Field({}, description="by name")
    figures: dict[Name, Figure] = Field({}, description="by name, which becomes the file's")

    @model_validator(mode="after")
    def _choices_make_sense(self) -> "Settings":
        if ThresholdRule.FIXED in self.threshold_rules:
            raise ValueError("threshold rule fixed needs a threshold: use it from the library")
        for chosen in (self.threshold_rules, self.conversions):
            if len(set(chosen)) < len(chosen):
                raise ValueError("threshold_rules and conversions must not repeat a name")
        return self


class Experiment(stages.Model):
    """One config, expanded.

    Attributes:
        settings: all but the audits.
        sweeps: the names of each sweep's audits.
        audits: by name; score and seed are filled in.
    """

    settings: Settings
    sweeps: dict[Name, tuple[Name, ...]]
    audits: dict[Name, Audit]

    def stage(self, model: type[Stage], *, audit: str) -> Stage:
        """What one stage is told of one audit: the settings that the stage's model names."""
        known: dict[str, Any] = {**dict(self.settings), **dict(self.audits[audit])}
        known["record_steps"] = _record_steps(self.audits[audit])
        known["model_seed"] = self.settings.seed
        if "training" in model.model_fields:
            known["training"] = self.stage(stages.TrainingStage, audit=audit)
        if model is stages.NoiseStage:
            known["num_steps"] //= known["canary_period"] or 1  # steps that are accounted
            if known["noise_multiplier"] is not None:
                known["delta"] = None  # nothing is calibrated, so delta does not matter
        return model(**{key: known[key] for key in model.model_fields})

    def dataset_stage(self, model: type[Stage], *, dataset: str) -> Stage:
        """What one stage is told of one dataset: the settings that the stage's model names."""
        known = {**dict(self.settings.datasets[dataset]), "seed": self.settings.seed}
        return model(**{key: known[key] for key in model.model_fields})


def _record_steps(audit: Audit) -> tuple[int, ...]:
    every = audit.record_every or audit.num_steps
    return tuple(range(every, audit.num_steps + 1, every))
