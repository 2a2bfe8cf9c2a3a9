"""One audit of a config, checked."""

from collections.abc import Sequence

from pydantic import field_validator, model_validator

from dpcanary.adversaries.adversary import Adversary, Inserts
from dpcanary.adversaries.catalogue import adversary, adversary_names
from dpcanary.adversaries.options import Simulation
from dpcanary.errors import suggestion
from dpcanary.observations import Observation
from dpcanary.settings.audit_keys import AuditKeys
from dpcanary.settings.sampling import check_sampling
from dpcanary.training.model_names import is_own
from dpcanary.training.options import (
    Initialisation,
    ModelKind,
    Optimizer,
    WorldAssignment,
)

# An adversary that draws a process trains no model and does not use these.
_OF_DATA_AND_MODEL = (
    "dataset", "model", "initialisation", "initial_weights", "pretraining", "loss",
    "runs_at_once",
)  # fmt: skip
_OF_OPTIMIZER = ("optimizer", "learning_rate", "learning_rate_schedule")
_OF_RESNET9 = ("width", "logit_scale")
_OF_IMAGES = ("augmentation_multiplicity",)
_FLAT = (ModelKind.LINEAR, ModelKind.MLP)
_OF_MLP = ("hidden_sizes", "activation")
_OF_CRAFTING = (
    "crafting_steps", "crafting_step_size", "simulation", "ranking", "num_simulations",
    "metagradient",
)  # fmt: skip
_OF_LANDSCAPE = ("landscape", "landscape_threshold")


class Audit(AuditKeys):
    """One training set-up whose epsilon is estimated."""

    @field_validator("canary")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in adversary_names():
            raise ValueError(f"unknown name, {suggestion(name, adversary_names())}")
        return name

    @model_validator(mode="after")
    def _training_is_consistent(self) -> "Audit":
        entry = self.adversary
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise ValueError("give either noise_multiplier or target_epsilon")
        if self.adjacency not in entry.adjacencies:
            known = " and ".join(entry.adjacencies)
            raise ValueError(f"canary {self.canary} audits adjacency {known}, not {self.adjacency}")
        score = entry.score(self.score)
        if score.observes == Observation.VALUE and not self.draws_start:
            raise ValueError(
                f"score {score.name} is for runs whose start is not known, and with initialisation"
                f" {self.start} it is: use score {entry.scores[0].name}, or initialisation per_run"
            )
        if self.initial_weights and self.start is Initialisation.ZEROS:
            raise ValueError(
                f"initial_weights {self.initial_weights} draws parameters, and initialisation zeros"
                " has none to draw: drop it, or give initialisation fixed or per_run"
            )
        if self.dataset is None and entry.is_trained:
            raise ValueError(f"canary {self.canary} needs a dataset")
        if self.num_steps % (self.record_every or 1):
            raise ValueError(f"record_every {self.record_every} does not divide num_steps")
        if self.model is ModelKind.MLP and not self.hidden_sizes:
            raise ValueError("model mlp needs hidden_sizes")
        if self.model is ModelKind.RESNET9 and self.width % 2:
            raise ValueError(f"model resnet9 needs an even width, not {self.width}")
        if self.initialisation is Initialisation.ZEROS and self.model is not ModelKind.LINEAR:
            raise ValueError("initialisation zeros is a saddle point of every model except linear")
        return self

    @model_validator(mode="after")
    def _start_is_consistent(self) -> "Audit":
        if self.pretraining and self.start is not Initialisation.FIXED:
            raise ValueError(
                f"initialisation {self.start} starts from no pretrained parameters: drop it, or"
                " pretraining"
            )
        if self.pretraining and self.pretraining.dataset == (self.dataset or ""):
            raise ValueError(
                f"pretraining.dataset {self.dataset} is the audited dataset, whose records are"
                " private: drop it, and its auxiliary records are taken, or name another"
            )
        return self

    @model_validator(mode="after")
    def _noise_is_consistent(self) -> "Audit":
        if self.noise_multiplier == 0 and self.adversary.inserts is not Inserts.RECORD:
            raise ValueError(
                f"noise_multiplier 0 trains without privacy, and canary {self.canary} is no record:"
                " give it noise"
            )
        return self

    @model_validator(mode="after")
    def _slots_are_consistent(self) -> "Audit":
        if self.num_slots == 1:
            if self.num_runs < 4 or self.num_runs % 2:
                raise ValueError(
                    f"num_runs is {self.num_runs}; it must be even, for two worlds, and at least 4"
                )
            if self.worlds not in (None, WorldAssignment.ALTERNATE):
                raise ValueError(f"worlds {self.worlds} needs num_slots above 1")
        elif not self.is_trained:
            raise ValueError(f"canary {self.canary} has only one slot")
        elif self.worlds is WorldAssignment.ALTERNATE:
            raise ValueError("worlds alternate is for num_slots 1; use coins or halves")
        elif self.worlds is WorldAssignment.HALVES and self.num_slots % 2:
            raise ValueError("worlds halves needs an even num_slots")
        if self.adversary.uses_optimised and self.num_slots % 2:
            raise ValueError(
                f"canary {self.canary} trains on half of its slots at a time: num_slots must be"
                f" even, not {self.num_slots}"
            )
        if self.augmentation_multiplicity and self.adversary.inserts is Inserts.GRADIENT:
            raise ValueError(
                f"canary {self.canary} is no image and has no views; with"
                " augmentation_multiplicity, use canaries that are records"
            )
        return self

    @model_validator(mode="after")
    def _looks_are_consistent(self) -> "Audit":
        if not self.looks:
            return self
        if self.num_slots > 1:
            raise ValueError("looks are for audits with one slot")
        if any(look % 2 for look in self.looks) or [*self.looks] != sorted({*self.looks}):
            raise ValueError("looks must be even numbers of runs that rise")
        if self.num_runs not in self.looks:
            raise ValueError(f"num_runs {self.num_runs} must be one of the looks")
        return self

    @model_validator(mode="after")
    def _sampling_is_consistent(self) -> "Audit":
        check_sampling(self)
        return self

    @property
    def adversary(self) -> Adversary:
        """The canary's entry in the catalogue."""
        return adversary(self.canary)

    @property
    def is_trained(self) -> bool:
        """Whether its runs train models."""
        return self.adversary.is_trained

    def fitting(self, num_runs: Sequence[int]) -> list[int]:
        """Those numbers of first runs that give an estimate; with one slot, worlds must be even."""
        least, step = (4, 2) if self.num_slots == 1 else (1, 1)
        return [one for one in num_runs if least <= one <= self.num_runs and one % step == 0]

    @property
    def has_drift(self) -> bool:
        """Whether scores of its slots are made alike by the drift of their coordinates."""
        return self.num_slots > 1 and self.adversary.inserts is Inserts.GRADIENT

    @property
    def start(self) -> Initialisation:
        """Where runs start, with the default filled in."""
        if self.initialisation or self.pretraining:
            return self.initialisation or Initialisation.FIXED
        if is_own(self.model):
            return Initialisation.FIXED
        return Initialisation.ZEROS if self.model is ModelKind.LINEAR else Initialisation.PER_RUN

    @property
    def own_functions(self) -> list[str]:
        """The function that makes its model, if that is the user's own."""
        return [str(self.model)] if self.is_trained and is_own(self.model) else []

    @property
    def draws_start(self) -> bool:
        """Whether every run draws initial parameters of its own."""
        return self.is_trained and self.start is Initialisation.PER_RUN

    @property
    def simulates_noise(self) -> bool:
        """Whether its canaries are crafted by simulations with the audit's noise."""
        return "simulation" in self.adversary.settings and self.simulation is Simulation.NOISY

    @property
    def unused_keys(self) -> set[str]:
        """Keys that the chosen canary, model and optimizer do not use."""
        unused = {*_OF_CRAFTING, *_OF_LANDSCAPE} - {*self.adversary.settings}
        if not self.is_trained:
            unused |= {*_OF_DATA_AND_MODEL, *_OF_OPTIMIZER}
        if not self.is_trained or self.model is not ModelKind.MLP:
            unused |= {*_OF_MLP}
        if not self.is_trained or self.model is not ModelKind.RESNET9:
            unused |= {*_OF_RESNET9}
        if not self.is_trained or self.model in _FLAT:
            unused |= {*_OF_IMAGES}
        if self.noise_multiplier == 0:
            unused.add("max_grad_norm")
        if not self.is_trained or self.optimizer is not Optimizer.MOMENTUM:
            unused.add("momentum")
        return unused

    @property
    def total_runs(self) -> int:
        """Runs of all repeats."""
        return self.num_runs * self.num_repeats

    @property
    def record_steps(self) -> tuple[int, ...]:
        """The recorded steps, ascending."""
        every = self.record_every or self.num_steps
        return tuple(range(every, self.num_steps + 1, every))

    @property
    def accounted_steps(self) -> int:
        """Steps in which the canary may be used."""
        return 1 if self.adversary.in_first_step else self.num_steps // (self.canary_period or 1)

    @property
    def shards(self) -> list[str]:
        """Names of the shards. They are indices, so more runs add names and change none."""
        return [f"{index:05d}" for index in range(-(-self.total_runs // self.runs_per_shard))]

    def runs_of(self, shard: str) -> range:
        """The run indices of a shard."""
        first = int(shard) * self.runs_per_shard
        return range(self.total_runs)[first : first + self.runs_per_shard]
