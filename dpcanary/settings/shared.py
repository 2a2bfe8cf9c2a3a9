"""Jobs that several audits of an experiment share, such as reference models."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from dpcanary.closed_model import ClosedModel
from dpcanary.files import sha256_of_text
from dpcanary.metagradients.stage import MetagradientStage
from dpcanary.settings.audit import Audit
from dpcanary.settings.experiment import Experiment
from dpcanary.training.mechanism_stage import PretrainingStage, ReferenceStage

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


def pretrained_models(experiment: Experiment) -> SharedJobs[PretrainingStage]:
    """The models that runs start from."""
    return SharedJobs(experiment, PretrainingStage, lambda audit: audit.pretraining is not None)


def reference_models(experiment: Experiment) -> SharedJobs[ReferenceStage]:
    """The reference models that canaries are crafted with."""
    return SharedJobs(experiment, ReferenceStage, lambda audit: audit.adversary.uses_reference)


def optimised_canaries(experiment: Experiment) -> SharedJobs[MetagradientStage]:
    """The sets of canaries that are optimised by metagradients."""
    return SharedJobs(experiment, MetagradientStage, lambda audit: audit.adversary.uses_optimised)
