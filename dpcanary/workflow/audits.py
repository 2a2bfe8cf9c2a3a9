"""The files and settings of audits, for the rules that make runs, scores and estimates."""

from collections.abc import Callable
from functools import cache
from typing import Any

from dpcanary.accounting.noise import CALIBRATION
from dpcanary.closed_model import ClosedModel
from dpcanary.settings.experiment import Experiment
from dpcanary.settings.shared import (
    SharedJobs,
    optimised_canaries,
    pretrained_models,
    reference_models,
)
from dpcanary.workflow.parameters import Value, Wildcards, with_known_signature


class AuditRules:
    """Files and settings of audits. Most methods take or return functions of a job's wildcards.

    A job that makes runs (noise, canaries, shards) has the wildcard `runs`, their name; one that
    audits share has the wildcard `reference`, `optimised` or `pretrained`. Its audit is the first
    one that uses them. Other jobs have the wildcard `audit`.

    Attributes:
        trained: names of runs that train models.
        drawn: names of runs that are drawn from a process.
        reference_models: the jobs that train reference models.
        optimised_canaries: the jobs that optimise canaries.
        pretrained_models: the jobs that pretrain models.
        data: the dataset file of the job's audit.
        other_data: the file of the dataset that its model is pretrained on; none if it is not, or
            not on another dataset.
        reference: the file of the reference model of the job's audit; none if crafting uses none.
        crafting_noise: the file of the noise that crafting simulates; none if it simulates none.
        optimised: the file of the optimised canaries of the job's audit; none if it uses none.
        pretrained: the file of the model that the runs of the job's audit start from; none if it is
            not pretrained.
        run_indices: of the job's shard.
    """

    def __init__(self, experiment: Experiment, results: str) -> None:
        """Takes an experiment, and the folder of its results."""
        self._experiment, self._results = experiment, results
        self._audits, self._first = experiment.audits, experiment.first_audits
        first = self._first.items()
        self.trained = [runs for runs, audit in first if self._audits[audit].is_trained]
        self.drawn = [runs for runs, audit in first if not self._audits[audit].is_trained]
        self.reference_models = reference_models(experiment)
        self.optimised_canaries = optimised_canaries(experiment)
        self.pretrained_models = pretrained_models(experiment)
        self._jobs = {
            "runs": self._first,
            "reference": self.reference_models.audits,
            "optimised": self.optimised_canaries.audits,
            "pretrained": self.pretrained_models.audits,
        }
        self.data = self.by_audit(self._data)
        self.other_data = self.by_audit(self._other_data)
        self.reference = self.by_audit(self._files("reference", self.reference_models))
        self.crafting_noise = self.by_audit(self._crafting_noise)
        self.optimised = self.by_audit(self._files("optimised", self.optimised_canaries))
        self.pretrained = self.by_audit(self._files("pretrained", self.pretrained_models))
        self.run_indices: Callable[[Wildcards], range] = with_known_signature(
            lambda wildcards: self._audits[self._first[wildcards.runs]].runs_of(wildcards.shard)
        )

    def by_audit(self, function: Callable[[str], Value]) -> Callable[[Wildcards], Value]:
        """Makes a function of an audit's name one of the job's wildcards; called once per audit."""
        cached = cache(function)

        def of_wildcards(wildcards: Wildcards) -> Value:
            return cached(self._audit_of(wildcards))

        return with_known_signature(of_wildcards)

    def stage_as_json(self, model: type[ClosedModel]) -> Callable[[Wildcards], str]:
        """The settings that a stage gets from the job's audit."""
        return self.by_audit(lambda name: self._experiment.stage(model, audit=name).to_json())

    def setting(self, key: str) -> Callable[[Wildcards], object]:
        """A setting of the job's audit; 0 where it is not set."""
        return self.by_audit(lambda name: getattr(self._audits[name], key) or 0)

    def shards(self, wildcards: Wildcards) -> list[str]:
        """The shard files of the job's audit."""
        folder = f"{self._results}/shards/{self._experiment.runs_of_audit[wildcards.audit]}"
        return [f"{folder}/{shard}.npz" for shard in self._audits[wildcards.audit].shards]

    def canaries(self, wildcards: Wildcards) -> list[str]:
        """The canary file of the job's audit; none where no model is trained."""
        runs = self._experiment.runs_of_audit[wildcards.audit]
        trained = self._audits[wildcards.audit].is_trained
        return [f"{self._results}/canaries/{runs}.npz"] if trained else []

    def noise(self, wildcards: Wildcards) -> str:
        """The noise file of the job's audit."""
        return f"{self._results}/noise/{self._experiment.runs_of_audit[wildcards.audit]}.json"

    def labels(self, wildcards: Wildcards) -> str:
        """The names of the job's audit, its canary and its score."""
        audit = self._audits[wildcards.audit]
        return f"{wildcards.audit} {audit.canary} {audit.score}"

    def function(self, audit: str) -> str:
        """The function that crafts an audit's canaries, or draws its runs."""
        return self._audits[audit].adversary.function

    def own_functions(self, audit: str) -> list[str]:
        """The function that makes an audit's model, if that is the user's own."""
        return self._audits[audit].own_functions

    def crafting_functions(self, audit: str) -> list[str]:
        """The function that crafts an audit's canaries, and the one that makes its model."""
        return [self.function(audit), *self.own_functions(audit)]

    def calibration(self, audit: str) -> list[str]:
        """The function that calibrates an audit's noise; none where the config gives the noise."""
        return [CALIBRATION] if self._audits[audit].noise_multiplier is None else []

    def exact(self, audit: str) -> list[str]:
        """The function that gives the exact curves of what an audit observes; none if unknown."""
        found = self._audits[audit].adversary.exact
        return [found] if found else []

    def score_function(self, audit: str) -> str:
        """The function that scores an audit's runs."""
        found = self._audits[audit]
        return found.adversary.score(found.score).function

    def _files(self, folder: str, jobs: SharedJobs[Any]) -> Callable[[str], list[str]]:
        """A function of an audit that gives the file of the job that it uses; none if none."""
        return lambda audit: [f"{self._results}/{folder}/{job}.npz" for job in jobs.of_audit(audit)]

    def _crafting_noise(self, audit: str) -> list[str]:
        runs = self._experiment.runs_of_audit[audit]
        noisy = self._audits[audit].simulates_noise
        return [f"{self._results}/noise/{runs}.json"] if noisy else []

    def _data(self, audit: str) -> str:
        return self._data_file(self._audits[audit].dataset)

    def _other_data(self, audit: str) -> list[str]:
        told = self._audits[audit].pretraining
        return [self._data_file(told.dataset)] if told and told.dataset else []

    def _data_file(self, dataset: str | None) -> str:
        return f"{self._results}/data/{dataset}.npz"

    def _audit_of(self, wildcards: Wildcards) -> str:
        """An audit that a job is for."""
        for wildcard, audits in self._jobs.items():
            if name := getattr(wildcards, wildcard, None):
                return audits[name]
        return str(wildcards.audit)
