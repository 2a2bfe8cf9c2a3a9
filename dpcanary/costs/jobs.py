"""The jobs of an experiment's rules, and what they share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from dpcanary.costs.analysis import STEPS_OF_START, Accounting, Calibrating
from dpcanary.costs.measuring import Probe
from dpcanary.costs.shapes import Shape
from dpcanary.costs.starting import Start
from dpcanary.gdp import gdp_mu
from dpcanary.settings import Audit, Experiment
from dpcanary.stages import AccountingStage, NoiseStage

# Probes, and how much of each of their units.
Parts = tuple[tuple[Probe, tuple[float, ...]], ...]
SHARED = "(shared)"
# The rough guess below is far off where noise is this little.
_LEAST_NOISE = 0.5


@dataclass(frozen=True)
class Jobs:
    """Jobs of one rule for one audit, or of a rule that audits share.

    Attributes:
        rule: its name.
        group: the audit's sweep, or `SHARED`.
        audit: its name; empty if shared.
        count: jobs.
        parts: what they do together.
        num_bytes: that their files take on disk.
        holds_gpu: whether each keeps the GPU for itself.
        models: that they train.
        model_steps: of these models.
    """

    rule: str
    group: str
    audit: str
    count: int
    parts: Parts
    num_bytes: int
    holds_gpu: bool = False
    models: int = 0
    model_steps: int = 0


class Plan:
    """An experiment, and what its jobs run with.

    Attributes:
        experiment: the config, expanded.
        shapes: of its datasets, by name.
        device: where models are trained, `cpu` or `cuda`.
        on_gpu: whether that is a GPU.
        rows_of_estimate: rows of a table that an estimate makes, by its rules and conversions.
    """

    def __init__(
        self, experiment: Experiment, *, shapes: Mapping[str, Shape], scripts: Path, device: str
    ) -> None:
        """Picks the audits that are accounted for all others of their sample rate.

        Args:
            experiment: the config, expanded.
            shapes: of its datasets, by name.
            scripts: folder of the programs.
            device: where models are trained, `cpu` or `cuda`.
        """
        self.experiment, self.shapes, self._scripts = experiment, shapes, scripts
        self.device, self.on_gpu = device, device == "cuda"
        settings, audits = experiment.settings, experiment.audits
        self.rows_of_estimate = len(settings.threshold_rules) * len(settings.conversions)
        self._accounted = _largest(audits, audits, num_recorded)
        calibrated = [name for name in audits if audits[name].target_epsilon is not None]
        self._calibrated = _largest(audits, calibrated, lambda audit: audit.num_steps)

    def shape_of(self, audit: Audit) -> Shape:
        """The shape of a trained audit's dataset."""
        assert audit.dataset is not None
        return self.shapes[audit.dataset]

    def start(self, rule: str) -> Start:
        """The start of a rule's program."""
        return Start(self._scripts / f"{rule}.py")

    def start_of_training(self) -> Start:
        """The start of a shard."""
        return Start(self._scripts / "train_shard.py", "train", self.device)

    def start_of_simulation(self) -> Start:
        """The start of a reference model or of a canary: they import the same."""
        return Start(self._scripts / "craft_canary.py", "updates", self.device)

    def start_of_figure(self) -> Start:
        """The start of a figure of any kind: they import the same."""
        return Start(self._scripts / "figure_epsilon_by_step.py")

    def calibration(self, audit: Audit) -> Parts:
        """What fixes an audit's noise."""
        if audit.target_epsilon is None:
            return ((self.start("calibrate_noise"), (1.0,)),)
        name = self._calibrated[audit.sample_rate]
        stage = self.experiment.stage(NoiseStage, audit=name)
        return ((Calibrating(self._scripts / "calibrate_noise.py", stage), (1.0,)),)

    def accounting(self, audit: Audit) -> Parts:
        """What accounts an audit."""
        steps = STEPS_OF_START + num_recorded(audit)
        return ((self.accounting_at(audit.sample_rate), (steps,)),)

    def accounting_at(self, sample_rate: float) -> Accounting:
        """Accounting at a sample rate, or at the nearest one that audits have."""
        nearest = min(self._accounted, key=lambda rate: abs(rate - sample_rate))
        name = self._accounted[nearest]
        noise = _rough_noise(self.experiment.audits[name], self.experiment.settings.delta)
        stage = self.experiment.stage(AccountingStage, audit=name)
        return Accounting(self._scripts / "account.py", stage, noise)


def num_recorded(audit: Audit) -> int:
    """How many steps of an audit are recorded."""
    return audit.num_steps // (audit.record_every or audit.num_steps)


def _largest(
    audits: Mapping[str, Audit], names: Iterable[str], size: Callable[[Audit], int]
) -> dict[float, str]:
    """Of each sample rate, the name of the audit of the largest size."""
    found: dict[float, str] = {}
    for name in sorted(names, key=lambda name: size(audits[name])):
        found[audits[name].sample_rate] = name
    return found


def _rough_noise(audit: Audit, delta: float) -> float:
    """Near enough to an audit's noise multiplier to take as long; by the central limit theorem."""
    if audit.noise_multiplier is not None:
        return audit.noise_multiplier
    assert audit.target_epsilon is not None
    mu = gdp_mu(epsilon=audit.target_epsilon, delta=delta)
    drift = audit.adjacency.sensitivity * audit.sample_rate * sqrt(audit.num_steps)
    return max(_LEAST_NOISE, drift / mu)
