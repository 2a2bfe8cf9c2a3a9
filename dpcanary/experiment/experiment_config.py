"""A whole config: the settings that all audits share, and the audits."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from dpcanary.adversaries.adversary_settings import DrawingStage
from dpcanary.core.plugins import unknown_name
from dpcanary.core.printing import table_lines, wrapped
from dpcanary.core.setting_fields import ClosedModel, Name, Sha256
from dpcanary.data.dataset_settings import SourceKeys, SplitKeys
from dpcanary.data.encoder_settings import EncodingKeys
from dpcanary.data.observations import Observation
from dpcanary.data.record_source import KNOWN_SOURCES, LABELS_ARE_CLASSES, OWN_SUFFIXES, is_own
from dpcanary.errors import InputError, suggestion
from dpcanary.estimation.estimation_settings import EstimationKeys
from dpcanary.estimation.rule_catalogue import (
    ThresholdRule,
    threshold_rule_named,
    threshold_rule_names,
)
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.figure_config import Figure
from dpcanary.training.training_settings import TrainingStage


class Dataset(SourceKeys, EncodingKeys, SplitKeys):
    """A dataset and how many of its records are private."""

    files: tuple[str, ...] = Field(
        (),
        max_length=2,
        description="local files in place of a known source's download: its training part, then"
        " its test part if it has one; paths are looked up in `data_folder` first",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> "Dataset":
        if self.source not in KNOWN_SOURCES and not is_own(self.source):
            raise ValueError(
                f"source {self.source!r} is not the path of a file ({', '.join(OWN_SUFFIXES)}), or"
                f" of a folder, which ends with a slash; {suggestion(self.source, KNOWN_SOURCES)}"
            )
        if self.files and (self.is_generated or is_own(self.source)):
            raise ValueError(f"source {self.source} is not read from other files")
        for key in ("preparation", "image_size"):
            if getattr(self, key) is not None and not is_own(self.source):
                raise ValueError(f"{key} is for files of your own, and not for {self.source}")
        if self.label_kind != "classes" and not is_own(self.source):
            raise ValueError(LABELS_ARE_CLASSES.format(self.source))
        if self.preparation is not None and self.source.endswith(".npz"):
            raise ValueError(f"preparation is for tables, and not for {self.source}")
        if self.image_size is not None and not self.source.endswith("/"):
            raise ValueError(f"image_size is for folders of images, and not for {self.source}")
        if self.encoder_revision and not self.encoder:
            raise ValueError("encoder_revision needs an encoder")
        return self

    @property
    def is_generated(self) -> bool:
        """Whether the records need no file."""
        return self.source in KNOWN_SOURCES and KNOWN_SOURCES[self.source].is_generated


Stage = TypeVar("Stage", bound=ClosedModel)


def _rule_of_configs(name: str) -> str:
    if name not in threshold_rule_names():
        raise ValueError(unknown_name(name, threshold_rule_names()))
    if name == ThresholdRule.FIXED:
        raise ValueError("threshold rule fixed needs a threshold: use it from the library")
    return name


# An editor offers the rules of this package and accepts those of plugins.
RuleName = Annotated[
    str,
    AfterValidator(_rule_of_configs),
    WithJsonSchema({"anyOf": [{"enum": [*ThresholdRule]}, {"type": "string"}]}),
]


class Settings(EstimationKeys):
    """Everything in a config except its audits."""

    experiment: Name = Field(description="results go to results/<experiment>/")
    seed: int = Field(0, ge=0, description="from which all randomness is derived")
    threshold_rules: tuple[RuleName, ...] = Field(
        (ThresholdRule.COMBINED.value,),
        min_length=1,
        description="how scores become bounds; figures draw those of the first valid one",
    )
    allow_not_valid: bool = Field(
        False,
        description="whether `threshold_rules` may name rules whose bounds are not valid, such as"
        " `in_sample`, for comparison with papers",
    )
    device: Literal["cpu", "cuda", "auto"] = Field("cpu", description="where models are trained")
    data_folder: str | None = Field(
        None,
        description="folder with local copies of downloads, datasets and encoders; by default that"
        " of the environment variable DPCANARY_DATA",
    )
    observations: Literal["trained", "released"] = Field(
        "trained",
        description="where the observations of runs come from: `trained` here, or `released`, from"
        " an `archive` of `dpcanary release`; then nothing is trained, and no data are read",
    )
    archive: str | None = Field(
        None,
        description="of observations that are `released`: the archive, looked up in `data_folder`"
        " first",
    )
    archive_sha256: Sha256 | None = Field(
        None,
        description="the SHA-256 of the `archive`, which is checked; by default what it is when the"
        " experiment is planned",
    )
    datasets: dict[Name, Dataset] = Field({}, description="by name")
    figures: dict[Name, Figure] = Field({}, description="by name, which is also the file name")

    @model_validator(mode="after")
    def _are_valid(self) -> "Settings":
        for name in self.threshold_rules:
            if not (self.allow_not_valid or threshold_rule_named(name).is_valid):
                raise ValueError(
                    f"threshold_rules: bounds by {name} are not valid: drop it, or write"
                    " `allow_not_valid: true`, for comparison with papers"
                )
        return self

    @model_validator(mode="after")
    def _has_an_archive(self) -> "Settings":
        if self.is_released and self.archive is None:
            raise ValueError("observations: released ones need an archive: give its path")
        if not self.is_released and (self.archive or self.archive_sha256):
            raise ValueError(
                "archive: it is read if observations are released: write `observations: released`,"
                " or drop it"
            )
        return self

    @property
    def is_released(self) -> bool:
        """Whether the observations are those of an archive."""
        return self.observations == "released"

    @field_validator("threshold_rules", "rank_rules", "conversions")
    @classmethod
    def _are_distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len({*names}) < len(names):
            raise ValueError("must not repeat a name")
        return names


class Experiment(ClosedModel):
    """One config, expanded.

    Attributes:
        settings: everything except the audits.
        sweeps: the names of each sweep's audits.
        audits: by name; score, seed, worlds and initialisation are filled in.
        runs_of_audit: for each audit, the name of its runs. Audits that differ only in their score
            share runs if these scores need the same observation.
        unused_keys: for each audit, the keys that its canary, model and optimizer do not use.
    """

    settings: Settings
    sweeps: dict[Name, tuple[Name, ...]]
    audits: dict[Name, Audit]
    runs_of_audit: dict[Name, Name]
    unused_keys: dict[Name, tuple[str, ...]]

    @model_validator(mode="after")
    def _is_whole(self) -> "Experiment":
        named = sorted(name for names in self.sweeps.values() for name in names)
        for listed in (self.audits, self.runs_of_audit, self.unused_keys):
            if sorted(listed) != named:
                raise ValueError("sweeps, audits, runs and unused keys name different audits")
        sweeps = {name for figure in self.settings.figures.values() for name in figure.sweeps}
        if {*self._datasets} - {*self.settings.datasets} or sweeps - {*self.sweeps}:
            raise ValueError("audits and figures name datasets and sweeps that are not in it")
        return self

    @property
    def used_datasets(self) -> list[str]:
        """The datasets that audits train or pretrain models on, in the order of the settings."""
        used = {*self._datasets}
        return [name for name in self.settings.datasets if name in used]

    @property
    def _datasets(self) -> Iterator[str]:
        for audit in self.audits.values():
            if audit.is_trained:
                other = audit.pretraining.dataset if audit.pretraining else None
                yield from filter(None, (audit.dataset, other))

    @property
    def own_functions(self) -> list[str]:
        """The functions that make models of the user's own."""
        functions = (name for audit in self.audits.values() for name in audit.own_functions)
        return [*dict.fromkeys(functions)]

    @property
    def functions(self) -> list[str]:
        """All functions that jobs of the audits call by name, the user's own included."""
        of_audits = (name for audit in self.audits.values() for name in audit.functions)
        return [*dict.fromkeys([*of_audits, *self.rule_functions])]

    @property
    def rule_functions(self) -> list[str]:
        """The functions of the rules by which scores become bounds, of this package."""
        rules = map(threshold_rule_named, self.settings.threshold_rules)
        return [rule.choose for rule in rules if isinstance(rule.choose, str)]

    @property
    def first_audits(self) -> dict[str, str]:
        """For each name of runs, the first audit that uses them."""
        first: dict[str, str] = {}
        for audit, runs in self.runs_of_audit.items():
            first.setdefault(runs, audit)
        return first

    def stage(self, model: type[Stage], *, audit: str) -> Stage:
        """The settings of one stage for one audit: those that are fields of the stage's model."""
        values = {**dict(self.settings), **dict(self.audits[audit]), **self._derived(audit)}
        if "runs_settings" in model.model_fields:
            runs = self.stage(self.runs_stage(audit), audit=audit)
            values["runs_settings"] = runs.model_dump(mode="json")
        if "exact_settings" in model.model_fields:
            values["exact_settings"] = (
                self.stage(DrawingStage, audit=audit).model_dump(mode="json")
                if values["exact"]
                else None
            )
        return model(**{key: values[key] for key in model.model_fields})

    def runs_stage(self, audit: str) -> type[TrainingStage] | type[DrawingStage]:
        """The model of the stage that makes an audit's runs."""
        return TrainingStage if self.audits[audit].is_trained else DrawingStage

    def dataset_stage(self, model: type[Stage], *, dataset: str) -> Stage:
        """The settings of one stage for one dataset."""
        values = {**dict(self.settings.datasets[dataset]), "seed": self.settings.seed}
        return model(**{key: values[key] for key in model.model_fields})

    def _derived(self, name: str) -> dict[str, Any]:
        """What follows from an audit's settings; those that it does not use have their defaults."""
        audit = self.audits[name]
        score = audit.scored_by
        defaults = {
            key: Audit.model_fields[key].get_default(call_default_factory=True)
            for key in audit.unused_keys
        }
        return defaults | {
            "is_private": audit.noise_multiplier != 0,
            "record_steps": audit.record_steps,
            "accounted_steps": audit.accounted_steps,
            "drift_steps": audit.record_steps if audit.has_drift else (),
            "target_delta": self.settings.delta if audit.target_epsilon else None,
            "model_seed": self.settings.seed,
            "function": audit.adversary.function,
            "observe": Observation(score.observes) if audit.is_trained else score.observes,
            "score_function": score.function,
            "in_first_step": audit.adversary.in_first_step,
            "has_equal_steps": audit.has_equal_steps,
            "exact": audit.adversary.exact,
            "optimise": audit.adversary.optimise,
        }


def read_experiment(path: Path) -> Experiment:
    """The resolved config of an experiment.

    Raises:
        InputError: if the file is missing or was written by another version of dpcanary.
    """
    try:
        return Experiment.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: it is the config of the results. If their run was interrupted,"
            " the same command goes on"
        ) from None
    except (OSError, ValueError) as error:
        lines = [line for line in str(error).splitlines() if "errors.pydantic.dev" not in line]
        reason = "\n".join(lines)
        message = (
            f"{path} is not a resolved config of this installation: {reason}\nIf a package that it"
            " names is missing, install it; otherwise run again from the config"
        )
        raise InputError(message) from None


_MAIN = ("canary", "dataset", "sample_rate", "noise_multiplier", "target_epsilon", "num_steps")
_RARELY_DIFFERENT = ("model", "adjacency")
_DERIVED = ("seed", "score")  # from other keys, unless the config gives them


def table_of_audits(experiment: Experiment) -> str:
    """A line for each audit: what its sweep, or the experiment, varies; runs and shards.

    Above the table is what all audits have in common of the main settings.
    """
    audits = experiment.audits
    swept = [
        key
        for key in Audit.model_fields
        if key != "num_runs"  # the runs of all repeats have a column
        and (
            any(_varies(key, names, experiment) for names in experiment.sweeps.values())
            or (key in _MAIN + _RARELY_DIFFERENT and _varies(key, [*audits], experiment))
        )
        # A canary is mostly a part of the name.
        and not (key == "canary" and all(own.canary in name for name, own in audits.items()))
    ]
    rows = [
        (name, *(_cell(getattr(audit, key)) for key in swept), f"{audit.total_runs}",
         f"{len(audit.shards)}")
        for name, audit in audits.items()
    ]  # fmt: skip
    first = next(iter(audits.values()))
    shared = [
        (key, getattr(first, key))
        for key in _MAIN
        if key not in swept and not _varies(key, [*audits], experiment)
    ]
    common = ", ".join(f"{key} {_cell(value)}" for key, value in shared if value is not None)
    # A narrow column divides words at spaces.
    in_words = [key.replace("noise_multiplier", "noise").replace("_", " ") for key in swept]
    table = table_lines(("audit", *in_words, "runs", "shards"), rows, named=True)
    return "\n".join([*([wrapped(f"All have {common}."), ""] if common else []), *table])


def _varies(key: str, names: Sequence[str], experiment: Experiment) -> bool:
    values = {name: str(getattr(experiment.audits[name], key)) for name in names}
    if key in _DERIVED and not all(value in name for name, value in values.items()):
        return False
    return len({*values.values()}) > 1


def _cell(value: Any) -> str:
    """A setting as it is written in a config."""
    if isinstance(value, tuple):
        return ", ".join(map(_cell, value)) or "-"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
