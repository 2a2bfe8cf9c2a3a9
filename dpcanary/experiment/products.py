"""What the jobs of an experiment make: each product's name, its settings, and its inputs."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from dpcanary.accounting.accounting_settings import AccountingStage, ComparisonStage
from dpcanary.accounting.audit_noise import NoiseStage
from dpcanary.adversaries.adversary_settings import CraftingStage, MetagradientStage
from dpcanary.core.files import sha256_of_text
from dpcanary.core.provenance import Job, listed, origin_of, origins_in, text_of_png
from dpcanary.core.setting_fields import ClosedModel
from dpcanary.data.encoder_settings import FeaturesStage
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import EstimationStage
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.experiment.figure_catalogue import figure_kind
from dpcanary.experiment.release import Released, open_release
from dpcanary.scoring.score_file import GRADIENT_NORM
from dpcanary.scoring.scoring_settings import ScoringStage
from dpcanary.training.training_settings import PretrainingStage, ReferenceStage

Stage = TypeVar("Stage", bound=ClosedModel)


@dataclass(frozen=True)
class SharedJobs(Generic[Stage]):
    """Jobs of one rule. Audits with the same data and the same settings of its stage share one.

    Attributes:
        experiment: the expanded config.
        stage: of the rule.
        is_used: whether an audit, whose runs train models, uses such a job.
    """

    experiment: Experiment
    stage: type[Stage]
    is_used: Callable[[Audit], bool]

    @cached_property
    def audits(self) -> dict[str, str]:
        """For each job, by name, an audit that it is for."""
        first = self.experiment.first_audits.values()
        return {name: audit for audit in first for name in self.of_audit(audit)}

    def of_audit(self, name: str) -> list[str]:
        """The name of the job that an audit uses; none if it uses none."""
        audit = self.experiment.audits[name]
        if not (audit.is_trained and self.is_used(audit)):
            return []
        settings = self.experiment.stage(self.stage, audit=name).to_json()
        return [f"{audit.dataset}-{sha256_of_text(settings)[:8]}"]

    def stage_of(self, job: str) -> Stage:
        """The settings of a job."""
        return self.experiment.stage(self.stage, audit=self.audits[job])

    def dataset_of(self, job: str) -> str:
        """The dataset of a job."""
        dataset = self.experiment.audits[self.audits[job]].dataset
        assert dataset is not None  # the audit trains models
        return dataset


_SUFFIXES = {
    "noise": ".json", "shards": "", "estimates": ".tsv", "estimates_by_runs": ".tsv",
    "accounting": ".tsv", "ceilings": ".tsv", "ratios": ".tsv",
    "summary": ".tsv", "summaries": ".tsv",
}  # fmt: skip


@dataclass(frozen=True)
class Product:
    """What a job makes.

    Attributes:
        name: its path below the results, without its ending; `summary/<audit>` are the rows of an
            audit in the summary.
        settings: of the job, as JSON.
        inputs: by role, the products that it is made from.
    """

    name: str
    settings: str
    inputs: Mapping[str, Sequence["Product"]] = field(default_factory=dict)

    @cached_property
    def origin(self) -> str:
        """What the product says of itself; see `provenance`."""
        return origin_of(self.name, settings=self.settings, inputs=self._origins)

    @property
    def path(self) -> str:
        """Its path below the results: that of a file, or for shards of their folder."""
        return self.name + _SUFFIXES.get(self.name.partition("/")[0], ".npz")

    @property
    def job(self) -> Job:
        """What the job's program is told of its product and its inputs."""
        inputs = {role: listed(origins) for role, origins in self._origins.items()}
        return Job(origin=self.origin, inputs=inputs)

    @cached_property
    def _origins(self) -> dict[str, tuple[str, ...]]:
        return {
            role: tuple(product.origin for product in products)
            for role, products in self.inputs.items()
        }


class Products:
    """The products of an experiment, each by the audit that it is for.

    Attributes:
        experiment: the experiment.
        reference_models: the jobs that train reference models.
        optimised_canaries: the jobs that optimise canaries.
        pretrained_models: the jobs that pretrain models.
    """

    def __init__(self, experiment: Experiment) -> None:
        """Takes an experiment."""
        self.experiment = experiment
        self._audits = experiment.audits
        self._first = experiment.first_audits
        self.reference_models = SharedJobs(
            experiment, ReferenceStage, lambda audit: audit.adversary.uses_reference
        )
        self.optimised_canaries = SharedJobs(
            experiment, MetagradientStage, lambda audit: bool(audit.adversary.optimise)
        )
        self.pretrained_models = SharedJobs(
            experiment, PretrainingStage, lambda audit: audit.pretraining is not None
        )
        # Each is made once: what it is made from is shared by many.
        for kind in (
            self.data, self.noise, self.pretrained, self.reference, self.optimised, self.canaries,
            self.shards, self.scores, self.estimates, self.estimates_by_runs, self.accounting,
            self.rows,
        ):  # fmt: skip
            setattr(self, kind.__name__, cache(kind))

    def data(self, dataset: str) -> Product:
        """The split records of a dataset."""
        settings = self.experiment.settings
        stage = f"{settings.datasets[dataset].to_json()} {settings.seed}"
        return Product(f"data/{dataset}", stage, {"features": self.features(dataset)})

    def features(self, dataset: str) -> list[Product]:
        """The encoded records of a dataset; none if it is not encoded.

        Experiments with the same records share them: they lie beside the results.
        """
        settings = self.experiment.settings.datasets[dataset]
        if not settings.encoder:
            return []
        stage = self.experiment.dataset_stage(FeaturesStage, dataset=dataset)
        inputs = " ".join([stage.to_json(), *settings.files])
        name = re.sub("[^A-Za-z0-9._-]", "-", Path(settings.source).name)  # part of a command
        return [Product(f"features/{name}-{sha256_of_text(inputs)[:8]}", inputs)]

    def noise(self, audit: str) -> Product:
        """The noise multiplier of an audit's runs."""
        return self._of_runs("noise", audit, NoiseStage)

    def pretrained(self, audit: str) -> list[Product]:
        """The model that an audit's runs start from; none if it is not pretrained."""
        inputs = {"data": self.data_of(audit), "other": self.other_data_of(audit)}
        return self._shared("pretrained", self.pretrained_models, audit, inputs)

    def reference(self, audit: str) -> list[Product]:
        """The reference model that an audit's canaries are crafted with; none if they need none."""
        inputs = {"data": self.data_of(audit), "pretrained": self.pretrained(audit)}
        return self._shared("reference", self.reference_models, audit, inputs)

    def optimised(self, audit: str) -> list[Product]:
        """The optimised canaries of an audit; none if it uses none."""
        inputs = {"data": self.data_of(audit)}
        return self._shared("optimised", self.optimised_canaries, audit, inputs)

    def canaries(self, audit: str) -> list[Product]:
        """The canaries of an audit's runs; none where no model is trained."""
        if not self._audits[audit].is_trained:
            return []
        inputs = {
            "data": self.data_of(audit),
            "reference": self.reference(audit),
            "noise": [self.noise(audit)] if self._audits[audit].simulates_noise else [],
            "optimised": self.optimised(audit),
            "pretrained": self.pretrained(audit),
        }
        return [self._of_runs("canaries", audit, CraftingStage, inputs)]

    def shards(self, audit: str) -> Product:
        """The shards of an audit's runs, which share an origin."""
        inputs = {"noise": [self.noise(audit)]}
        if self._audits[audit].is_trained:
            inputs |= {
                "data": self.data_of(audit),
                "canaries": self.canaries(audit),
                "pretrained": self.pretrained(audit),
            }
        return self._of_runs("shards", audit, self.experiment.runs_stage(audit), inputs)

    def scores(self, audit: str) -> Product:
        """The scores of an audit."""
        inputs = {"shards": [self.shards(audit)], "canaries": self.canaries(audit)}
        return Product(f"scores/{audit}", self._stage(ScoringStage, audit), inputs)

    def estimates(self, audit: str) -> Product:
        """The lower bounds of an audit."""
        inputs = {"scores": [self.scores(audit)]}
        return Product(f"estimates/{audit}", self._stage(EstimationStage, audit), inputs)

    def estimates_by_runs(self, figure: str, audit: str) -> Product:
        """The lower bounds of an audit from its first runs, for a figure."""
        inputs = {"scores": [self.scores(audit)]}
        stage = f"{self._stage(EstimationStage, audit)} {self.numbers_of_runs(figure, audit)}"
        return Product(f"estimates_by_runs/{figure}/{audit}", stage, inputs)

    def accounting(self, audit: str) -> Product:
        """The upper bounds of an audit, and its privacy profile."""
        inputs = {"noise": [self.noise(audit)]}
        return Product(f"accounting/{audit}", self._stage(AccountingStage, audit), inputs)

    def ceilings(self, figure: str) -> Product:
        """The most that the audits of a figure can show without assumptions."""
        audits = self.audits_of(figure)
        inputs = {"scores": [self.scores(audit) for audit in audits]}
        return Product(f"ceilings/{figure}", self._stage(EstimationStage, audits[0]), inputs)

    def ratios(self, figure: str) -> Product:
        """The epsilons that a figure compares."""
        settings = self.experiment.settings
        keys = {**dict(settings), **dict(settings.figures[figure])}
        stage = ComparisonStage(**{key: keys[key] for key in ComparisonStage.model_fields})
        return Product(f"ratios/{figure}", stage.to_json())

    def rows(self, audit: str, *, figure: str | None = None) -> Product:
        """The rows of an audit in the summary, or in the table of a figure."""
        estimates = self.estimates(audit)
        if figure and figure_kind(self.experiment.settings.figures[figure].kind).is_by_runs:
            estimates = self.estimates_by_runs(figure, audit)
        inputs = {"estimates": [estimates], "accounting": [self.accounting(audit)]}
        return Product(f"summary/{audit}", self._audits[audit].to_json(), inputs)

    def summary(self, sweeps: Sequence[str], *, figure: str | None = None) -> list[Product]:
        """The rows of all audits of some sweeps, in their order in the table."""
        return [self.rows(audit, figure=figure) for audit in self._audits_of_sweeps(sweeps)]

    def has_figure(self, path: Path) -> bool:
        """Whether a PNG file says that it is a figure of this experiment, as its config is."""
        figures = self.experiment.settings.figures
        return path.stem in figures and text_of_png(path) == self.figure(path.stem).origin

    def figure(self, figure: str) -> Product:
        """A figure."""
        shown = self.experiment.settings.figures[figure]
        inputs = {role: self.of_figure(figure, role) for role in figure_kind(shown.kind).files}
        return Product(f"figures/{figure}", shown.to_json(), inputs)

    def of_figure(self, figure: str, role: str) -> list[Product]:
        """What a figure is drawn from: its summary, scores, profiles, ceilings or ratios."""
        settings = self.experiment.settings.figures[figure]
        if role == "summary":
            return self.summary(settings.sweeps, figure=figure)
        if role == "ceilings":
            return [self.ceilings(figure)] if settings.shown else []
        if role == "ratios":
            return [self.ratios(figure)]
        of_audit = {"scores": self.scores, "profiles": self.accounting}[role]
        return [of_audit(audit) for audit in self.audits_of(figure)]

    def of_release(self, holds: Released) -> dict[str, str]:
        """The origin of each file in a release of the experiment, by its path.

        Noise is there so that exactly what was trained is accounted: another version of an
        accountant may calibrate it to another last digit.
        """
        files = {product.path: product for product in map(self.noise, self._first.values())}
        if holds is Released.SCORES:
            files |= {product.path: product for product in map(self.scores, self._audits)}
        else:
            files |= {
                product.path: product for audit in self._audits for product in self.canaries(audit)
            }
            files |= {
                f"{self.shards(audit).path}/{shard}.npz": self.shards(audit)
                for audit in self._first.values()
                for shard in self._audits[audit].shards
            }
        return {path: product.origin for path, product in sorted(files.items())}

    def check_release(self, archive: Path) -> dict[str, str]:
        """Compares a release with what one of this experiment has.

        Returns:
            The origin of each of its files, as `of_release`.

        Raises:
            InputError: if it is damaged, or of another experiment.
        """
        with open_release(archive) as release:
            expected = self.of_release(release.manifest.holds)
            release.check(expected)
        return expected

    def check_summary(self, path: Path) -> None:
        """Compares the summary of all audits with what they must have been made from.

        Raises:
            InputError: if its rows were made with another config.
        """
        expected = {product.origin for product in self.summary([*self.experiment.sweeps])}
        if {*origins_in(path)} != expected:
            raise InputError(
                f"{path} was not made with the config that is in {path.parent}: run the workflow on"
                " this config to bring the results up to date, or on the one that they are from"
            )

    def numbers_of_runs(self, figure: str, audit: str) -> list[int]:
        """The numbers of first runs of a figure at which an audit has estimates."""
        return self._audits[audit].fitting(self.experiment.settings.figures[figure].num_runs)

    def audits_of(self, figure: str) -> list[str]:
        """A figure's audits: those of its sweeps, of norms only those that keep them."""
        shown = self.experiment.settings.figures[figure]
        audits = self._audits_of_sweeps(shown.sweeps)
        if "norms" not in figure_kind(shown.kind).inputs:
            return audits
        return [audit for audit in audits if self._audits[audit].score == GRADIENT_NORM]

    def data_of(self, audit: str) -> list[Product]:
        """The split dataset of an audit; none where no model is trained."""
        dataset = self._audits[audit].dataset
        return [self.data(dataset)] if dataset and self._audits[audit].is_trained else []

    def other_data_of(self, audit: str) -> list[Product]:
        """The dataset that an audit's model is pretrained on, if it is another one."""
        start = self._audits[audit].pretraining
        return [self.data(start.dataset)] if start and start.dataset else []

    def _audits_of_sweeps(self, sweeps: Sequence[str]) -> list[str]:
        return [audit for sweep in sweeps for audit in self.experiment.sweeps[sweep]]

    def _of_runs(
        self,
        kind: str,
        audit: str,
        stage: type[ClosedModel],
        inputs: Mapping[str, Sequence[Product]] | None = None,
    ) -> Product:
        """A product that all audits with the same runs share; its settings are the first one's."""
        runs = self.experiment.runs_of_audit[audit]
        return Product(f"{kind}/{runs}", self._stage(stage, self._first[runs]), inputs or {})

    def _shared(
        self, kind: str, jobs: SharedJobs[Any], audit: str, inputs: Mapping[str, Sequence[Product]]
    ) -> list[Product]:
        return [
            Product(f"{kind}/{job}", self._stage(jobs.stage, jobs.audits[job]), inputs)
            for job in jobs.of_audit(audit)
        ]

    def _stage(self, stage: type[ClosedModel], audit: str) -> str:
        return self.experiment.stage(stage, audit=audit).to_json()
