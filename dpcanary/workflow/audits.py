"""The files and settings of audits, for the rules that make runs, scores and estimates."""

from collections.abc import Callable
from functools import cache

from dpcanary.accounting.noise import CALIBRATION
from dpcanary.closed_model import ClosedModel
from dpcanary.files import sha256_of_text
from dpcanary.metagradients.stage import MetagradientStage
from dpcanary.settings.experiment import Experiment
from dpcanary.training.mechanism_stage import ReferenceStage
from dpcanary.workflow.parameters import Value, Wildcards, with_known_signature


class AuditRules:
    """Files and settings of audits. Most methods take or return functions of a job's wildcards.

    A job that makes runs (noise, canaries, shards) has the wildcard `runs`, their name. Its audit
    is the first one that uses them. Other jobs have the wildcard `audit`.

    Attributes:
        trained: names of runs that train models.
        drawn: names of runs that are drawn from a process.
        references: for each reference model that some crafting uses, an audit that it is for.
        shared_canaries: for each file of optimised canaries, an audit that uses it.
        data: the dataset file of the job's audit.
        reference: the file of the reference model of the job's audit; none if crafting uses none.
        crafting_noise: the file of the noise that crafting simulates; none if it simulates none.
        optimised: the file of the optimised canaries of the job's audit; none if it uses none.
        run_indices: of the job's shard.
    """

    def __init__(self, experiment: Experiment, results: str) -> None:
        """Takes an experiment, and the folder of its results."""
        self._experiment, self._results = experiment, results
        self._audits, self._first = experiment.audits, experiment.first_audits
        first = self._first.items()
        self.trained = [runs for runs, audit in first if self._audits[audit].is_trained]
        self.drawn = [runs for runs, audit in first if not self._audits[audit].is_trained]
        trained = [self._first[runs] for runs in self.trained]
        self.references = {
            self._reference_name(audit): audit
            for audit in trained
            if self._audits[audit].adversary.uses_reference
        }
        self.shared_canaries = {
            self._optimised_name(audit): audit
            for audit in trained
            if self._audits[audit].adversary.uses_optimised
        }
        self.data = self.by_audit(self._data)
        self.reference = self.by_audit(self._references)
        self.crafting_noise = self.by_audit(self._crafting_noise)
        self.optimised = self.by_audit(self._optimised)
        self.run_indices: Callable[[Wildcards], range] = with_known_signature(
            lambda wildcards: self._audits[self._first[wildcards.runs]].runs_of(wildcards.shard)
        )

    def by_audit(self, function: Callable[[str], Value]) -> Callable[[Wildcards], Value]:
        """Makes a function of an audit's name one of the job's wildcards; called once per audit."""
        cached = cache(function)

        def of_wildcards(wildcards: Wildcards) -> Value:
            runs = getattr(wildcards, "runs", None)
            return cached(self._first[runs] if runs else wildcards.audit)

        return with_known_signature(of_wildcards)

    def stage_as_json(self, model: type[ClosedModel]) -> Callable[[Wildcards], str]:
        """The settings that a stage gets from the job's audit."""
        return self.by_audit(lambda name: self._experiment.stage(model, audit=name).to_json())

    def setting(self, key: str) -> Callable[[Wildcards], object]:
        """A setting of the job's audit; 0 where it is not set."""
        return self.by_audit(lambda name: getattr(self._audits[name], key) or 0)

    def reference_stage(self, reference: str) -> ReferenceStage:
        """The settings of the job that trains a reference model."""
        return self._experiment.stage(ReferenceStage, audit=self.references[reference])

    def data_of_reference(self, wildcards: Wildcards) -> str:
        """The dataset file of the job's reference model."""
        return self._data(self.references[wildcards.reference])

    def optimised_stage(self, optimised: str) -> MetagradientStage:
        """The settings of the job that optimises canaries."""
        return self._experiment.stage(MetagradientStage, audit=self.shared_canaries[optimised])

    def data_of_optimised(self, wildcards: Wildcards) -> str:
        """The dataset file of the job's optimised canaries."""
        return self._data(self.shared_canaries[wildcards.optimised])

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

    def _reference_name(self, audit: str) -> str:
        """The reference model of an audit. Audits with the same data and descent share it."""
        return self._shared_name(ReferenceStage, audit)

    def _optimised_name(self, audit: str) -> str:
        """The optimised canaries of an audit. Audits with the same data and seed share them."""
        return self._shared_name(MetagradientStage, audit)

    def _shared_name(self, stage: type[ReferenceStage | MetagradientStage], audit: str) -> str:
        settings = self._experiment.stage(stage, audit=audit).to_json()
        return f"{self._audits[audit].dataset}-{sha256_of_text(settings)[:8]}"

    def _references(self, audit: str) -> list[str]:
        used = self._audits[audit].adversary.uses_reference
        return [f"{self._results}/reference/{self._reference_name(audit)}.npz"] if used else []

    def _optimised(self, audit: str) -> list[str]:
        used = self._audits[audit].adversary.uses_optimised
        return [f"{self._results}/optimised/{self._optimised_name(audit)}.npz"] if used else []

    def _crafting_noise(self, audit: str) -> list[str]:
        runs = self._experiment.runs_of_audit[audit]
        noisy = self._audits[audit].simulates_noise
        return [f"{self._results}/noise/{runs}.json"] if noisy else []

    def _data(self, audit: str) -> str:
        return f"{self._results}/data/{self._audits[audit].dataset}.npz"
