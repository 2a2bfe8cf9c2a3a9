"""The files and settings of audits, for the rules that make runs, scores and estimates."""

from collections.abc import Callable

from dpcanary.accounting.noise import CALIBRATION
from dpcanary.closed_model import ClosedModel
from dpcanary.files import sha256_of_text
from dpcanary.settings.audit import Audit
from dpcanary.settings.experiment import Experiment
from dpcanary.training.mechanism_stage import ReferenceStage
from dpcanary.workflow.parameters import Wildcards, by_audit, with_known_signature


class AuditRules:
    """What the rules of audits ask, as functions of a job's wildcards.

    Attributes:
        trained: names of the audits whose jobs train models.
        drawn: names of the audits whose jobs draw the runs of a process.
        references: for each reference model, an audit that uses it.
    """

    def __init__(self, experiment: Experiment, results: str) -> None:
        """Takes an experiment, and the folder of its results."""
        self._experiment, self._results = experiment, results
        makers = {*experiment.makers.values()}
        audits = {name: experiment.audits[name] for name in experiment.audits if name in makers}
        self.trained = [name for name, audit in audits.items() if audit.is_trained]
        self.drawn = [name for name, audit in audits.items() if not audit.is_trained]
        self.references = {self.reference_name(name): name for name in self.trained}

    def stage_as_json(self, model: type[ClosedModel]) -> Callable[[Wildcards], str]:
        """What a stage is told of the job's audit."""
        return by_audit(lambda name: self._experiment.stage(model, audit=name).to_json())

    def setting(self, key: str) -> Callable[[Wildcards], object]:
        """A setting of the job's audit; 0 where it is not set."""
        return by_audit(lambda name: getattr(self._audit(name), key) or 0)

    def reference_stage(self, reference: str) -> ReferenceStage:
        """What the job that trains a reference model is told."""
        return self._experiment.stage(ReferenceStage, audit=self.references[reference])

    def reference_name(self, audit: str) -> str:
        """The reference model of an audit. Audits of the same data and descent share it."""
        settings = self._experiment.stage(ReferenceStage, audit=audit).to_json()
        return f"{self._audit(audit).dataset}-{sha256_of_text(settings)[:8]}"

    def data_of_reference(self, wildcards: Wildcards) -> str:
        """The dataset file of the job's reference model."""
        return self._data(self.references[wildcards.reference])

    @property
    def data(self) -> Callable[[Wildcards], str]:
        """The dataset file of the job's audit."""
        return by_audit(self._data)

    @property
    def reference(self) -> Callable[[Wildcards], str]:
        """The file of the reference model of the job's audit."""
        name = self.reference_name
        return by_audit(lambda audit: f"{self._results}/reference/{name(audit)}.npz")

    @property
    def runs(self) -> Callable[[Wildcards], range]:
        """The run indices of the job's shard."""

        def of_shard(wildcards: Wildcards) -> range:
            return self._audit(wildcards.audit).runs_of(wildcards.shard)

        return with_known_signature(of_shard)

    def maker(self, audit: str) -> str:
        """The audit whose jobs make an audit's runs."""
        return self._experiment.makers[audit]

    def shards(self, wildcards: Wildcards) -> list[str]:
        """The shard files of the job's audit."""
        folder = f"{self._results}/shards/{self.maker(wildcards.audit)}"
        return [f"{folder}/{shard}.npz" for shard in self._audit(wildcards.audit).shards]

    def canaries(self, wildcards: Wildcards) -> list[str]:
        """The canary file of the job's audit; none where no model is trained."""
        maker = self.maker(wildcards.audit)
        return [f"{self._results}/canaries/{maker}.npz"] if maker in self.trained else []

    def names(self, wildcards: Wildcards) -> str:
        """What the job's audit, its canary and its score are called."""
        audit = self._audit(wildcards.audit)
        return f"{wildcards.audit} {audit.canary} {audit.score}"

    def function(self, audit: str) -> str:
        """The function that crafts an audit's canaries, or draws its runs."""
        return self._audit(audit).adversary.function

    def calibration(self, audit: str) -> list[str]:
        """The function that calibrates an audit's noise; none where it is given."""
        return [CALIBRATION] if self._audit(audit).noise_multiplier is None else []

    def score_function(self, audit: str) -> str:
        """The function that scores an audit's runs."""
        found = self._audit(audit)
        return found.adversary.score(found.score).function

    def _audit(self, name: str) -> Audit:
        return self._experiment.audits[name]

    def _data(self, audit: str) -> str:
        return f"{self._results}/data/{self._audit(audit).dataset}.npz"
