"""A whole config: what all audits share, and the audits."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from dpcanary.adversaries.drawing_stage import DrawingStage
from dpcanary.closed_model import ClosedModel
from dpcanary.errors import InputError, suggestion
from dpcanary.estimation.options import Conversion, Independence, ThresholdRule
from dpcanary.estimation.rule_names import threshold_rule_names
from dpcanary.observations import Observation
from dpcanary.settings.audit import Audit
from dpcanary.settings.dataset import Dataset
from dpcanary.settings.fields import Name, Probability
from dpcanary.settings.figure import Figure
from dpcanary.training.options import Initialisation, ModelKind, WorldAssignment
from dpcanary.training.stage import TrainingStage

Stage = TypeVar("Stage", bound=ClosedModel)
# An editor offers the rules of this package, and admits those of plugins.
RuleName = Annotated[
    str, WithJsonSchema({"anyOf": [{"enum": [*ThresholdRule]}, {"type": "string"}]})
]


class Settings(ClosedModel):
    """Everything in a config except its audits."""

    experiment: Name = Field(description="results go to results/<experiment>/")
    seed: int = Field(0, ge=0, description="of all randomness")
    delta: Probability = Field(description="of (epsilon, delta)-DP, audited and accounted")
    significance: float = Field(
        0.05,
        ge=1e-6,
        le=0.5,
        description="probability with which each single bound may exceed the truth",
    )
    threshold_rules: tuple[RuleName, ...] = Field(
        (ThresholdRule.SIMULTANEOUS.value,), min_length=1, description="how thresholds are chosen"
    )
    conversions: tuple[Conversion, ...] = Field(
        (Conversion.GDP,), min_length=1, description="how error rates become an epsilon"
    )
    independent: Independence = Field(
        Independence.RUNS,
        description="which scores a bound treats as independent, where a run has several slots",
    )
    device: Literal["cpu", "cuda", "auto"] = Field("cpu", description="where models are trained")
    data_folder: str | None = Field(
        None,
        description="folder with local copies of downloads, datasets and encoders; by default the"
        " environment variable DPCANARY_DATA",
    )
    datasets: dict[Name, Dataset] = Field({}, description="by name")
    figures: dict[Name, Figure] = Field({}, description="by name, which becomes the file's")

    @field_validator("threshold_rules")
    @classmethod
    def _are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in threshold_rule_names():
                raise ValueError(f"unknown name, {suggestion(name, threshold_rule_names())}")
        return names

    @model_validator(mode="after")
    def _choices_make_sense(self) -> "Settings":
        if ThresholdRule.FIXED in self.threshold_rules:
            raise ValueError("threshold rule fixed needs a threshold: use it from the library")
        for chosen in (self.threshold_rules, self.conversions):
            if len(set(chosen)) < len(chosen):
                raise ValueError("threshold_rules and conversions must not repeat a name")
        return self


class Experiment(ClosedModel):
    """One config, expanded.

    Attributes:
        settings: all but the audits.
        sweeps: the names of each sweep's audits.
        audits: by name; score, seed, worlds and initialisation are filled in.
        makers: for each audit, the audit whose job makes its runs: the audit itself, or another
            one that differs in its score alone.
    """

    settings: Settings
    sweeps: dict[Name, tuple[Name, ...]]
    audits: dict[Name, Audit]
    makers: dict[Name, Name]

    def stage(self, model: type[Stage], *, audit: str) -> Stage:
        """What one stage is told of one audit: the settings that the stage's model names."""
        known = {**dict(self.settings), **dict(self.audits[audit]), **self._derived(audit)}
        if "told" in model.model_fields:
            known["told"] = self.stage(self.runs_stage(audit), audit=audit).model_dump(mode="json")
        return model(**{key: known[key] for key in model.model_fields})

    def runs_stage(self, audit: str) -> type[TrainingStage] | type[DrawingStage]:
        """The model of what the jobs that make an audit's runs are told."""
        return TrainingStage if self.audits[audit].is_trained else DrawingStage

    def dataset_stage(self, model: type[Stage], *, dataset: str) -> Stage:
        """What one stage is told of one dataset: the settings that the stage's model names."""
        known = {**dict(self.settings.datasets[dataset]), "seed": self.settings.seed}
        return model(**{key: known[key] for key in model.model_fields})

    def _derived(self, name: str) -> dict[str, Any]:
        """What follows from an audit's settings. Settings that it does not use are None."""
        audit = self.audits[name]
        score = audit.adversary.score(audit.score)
        calibrated = audit.noise_multiplier is None
        derived: dict[str, Any] = {
            "record_steps": audit.record_steps,
            "accounted_steps": audit.num_steps // (audit.canary_period or 1),
            "target_delta": self.settings.delta if calibrated else None,
            "model_seed": self.settings.seed,
            "function": audit.adversary.function,
            "observe": Observation(score.observes) if audit.is_trained else score.observes,
            "score_function": score.function,
        }
        unused = dict.fromkeys(audit.unused_keys, None)
        return derived | unused | ({"hidden_sizes": ()} if "hidden_sizes" in unused else {})


def read_experiment(path: Path) -> Experiment:
    """The resolved config of an experiment.

    Raises:
        InputError: if the file is missing, or of another version of dpcanary.
    """
    try:
        return Experiment.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is no resolved config; delete it and run again: {error}"
        ) from None


def filled(audit: Audit, *, seed: int) -> Audit:
    """The audit with its own score, seed, worlds and start, and no dataset that it does not read.

    Args:
        audit: as the config has it.
        seed: the audit's, where the config gives none.
    """
    linear = audit.model is ModelKind.LINEAR
    start = Initialisation.ZEROS if linear else Initialisation.PER_RUN
    worlds = WorldAssignment.COINS if audit.num_slots > 1 else WorldAssignment.ALTERNATE
    return audit.model_copy(
        update={
            "seed": seed if audit.seed is None else audit.seed,
            "score": audit.adversary.score(audit.score).name,
            "dataset": audit.dataset if audit.is_trained else None,
            "initialisation": audit.initialisation or start,
            "worlds": audit.worlds or worlds,
        }
    )
