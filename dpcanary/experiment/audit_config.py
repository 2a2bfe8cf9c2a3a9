"""One audit of a config: its keys, with their defaults and limits, and how they fit together."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from dpcanary.accounting.audit_noise import NoiseKeys
from dpcanary.adversaries.adversary import Adversary, Inserts, Score
from dpcanary.adversaries.adversary_settings import (
    CraftingKeys,
    LandscapeKeys,
    MetagradientKeys,
    OtherRecords,
    SecretKeys,
    ShuffledKeys,
    Simulation,
)
from dpcanary.adversaries.catalogue import adversary, adversary_names
from dpcanary.core.plugins import unknown_name
from dpcanary.core.setting_fields import Count, Flag, Offered, UsedIf, metadata_of
from dpcanary.data.observations import Observation
from dpcanary.training.training_settings import (
    TRAINED,
    DataKeys,
    DescentKeys,
    Initialisation,
    LearningRateSchedule,
    Loss,
    MechanismKeys,
    ModelKeys,
    ModelKind,
    Optimizer,
    Sampling,
    SamplingKeys,
    WorldAssignment,
    is_own,
)


def refusal_of_numbers(entry: Adversary, loss: Loss) -> str:
    """Why an adversary cannot have a loss whose labels are numbers; empty if it can."""
    if not (entry.has_candidates and entry.is_trained) or loss.is_of_classes:
        return ""
    return (
        f"canary {entry.name} draws one of several classes, and with loss {loss} labels are"
        " numbers: audit them by canary mislabeled or loss"
    )


class Audit(
    CraftingKeys,
    MetagradientKeys,
    LandscapeKeys,
    ShuffledKeys,
    SecretKeys,
    NoiseKeys,
    MechanismKeys,
    SamplingKeys,
    DescentKeys,
    ModelKeys,
    DataKeys,
):
    """One training set-up whose epsilon is estimated: the keys of all stages, and those below."""

    canary: Annotated[str, Offered(adversary_names)] = Field(
        description="how the neighbouring dataset differs"
    )
    score: str | None = Field(
        None, description="how runs are scored; by default by the canary's first score"
    )
    num_slots: Annotated[Count, Flag("The attack")] = Field(
        1, description="canaries per run, each with its own target record"
    )
    worlds: WorldAssignment | None = Field(
        None,
        description="how the world of each slot is chosen; by default `alternate` with one slot,"
        " else `coins`; always `candidates` where slots hold secrets",
    )
    num_runs: Annotated[Count, Flag("The attack")] = Field(
        description="models trained, or draws of a process; with one slot in two worlds, even and"
        " at least 4"
    )
    num_repeats: Count = Field(1, description="independent estimates, of num_runs runs each")
    looks: tuple[Count, ...] = Field(
        (),
        description="numbers of runs at which the bounds are looked at and hold jointly; fixed"
        " before the first run. num_runs must be one of them, and may grow to the next;"
        " threshold_rules may then have calibrated rules and anytime only",
    )
    record_every: Count | None = Field(
        None, description="steps between estimates; by default only the last step gets one"
    )
    runs_per_shard: Count = Field(500, description="models trained by one job")
    runs_at_once: Annotated[Count | None, TRAINED] = Field(
        None,
        description="models in memory at once, per thread; by default the fastest number that"
        " fits in half of the free memory",
    )
    seed: int | None = Field(
        None,
        ge=0,
        description="by default made from the experiment's seed and the name of the runs",
    )

    @field_validator("canary")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in adversary_names():
            raise ValueError(unknown_name(name, adversary_names()))
        return name

    @model_validator(mode="after")
    def _training_is_consistent(self) -> "Audit":
        entry = self.adversary
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise ValueError("give either noise_multiplier or target_epsilon")
        if self.adjacency not in entry.adjacencies:
            possible = " and ".join(entry.adjacencies)
            raise ValueError(
                f"canary {self.canary} audits adjacency {possible}, not {self.adjacency}"
            )
        score = self.scored_by
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
        if entry.optimise and not self.loss.is_of_classes:
            raise ValueError(
                f"canary {self.canary} optimises cross-entropy, and loss {self.loss} has none"
            )
        if refusal := refusal_of_numbers(entry, self.loss):
            raise ValueError(refusal)
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
        if self.adversary.has_candidates:
            if self.worlds not in (None, WorldAssignment.CANDIDATES):
                raise ValueError(f"canary {self.canary} has several values: drop worlds")
        elif self.worlds is WorldAssignment.CANDIDATES:
            raise ValueError(f"worlds candidates is for secrets, not for canary {self.canary}")
        elif self.num_slots == 1:
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
        if self.adversary.optimise and self.num_slots % 2:
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
    def _copies_are_consistent(self) -> "Audit":
        copies = self.num_copies if "num_copies" in self.adversary.settings else 1
        if copies > 1 and self.sample_rate < 1:
            raise ValueError(
                "num_copies above 1 needs sample_rate 1, where copies are a record with so many"
                " times its gradient"
            )
        return self

    @model_validator(mode="after")
    def _looks_are_consistent(self) -> "Audit":
        if not self.looks:
            return self
        if self.adversary.has_candidates:
            raise ValueError("looks are for audits with two worlds")
        if self.num_slots > 1:
            raise ValueError("looks are for audits with one slot")
        if any(look % 2 for look in self.looks) or [*self.looks] != sorted({*self.looks}):
            raise ValueError("looks must be even numbers of runs that rise")
        if self.num_runs not in self.looks:
            raise ValueError(f"num_runs {self.num_runs} must be one of the looks")
        return self

    @model_validator(mode="after")
    def _sampling_is_consistent(self) -> "Audit":
        if self.adversary.in_first_step:
            self._check_first_step()
        elif self.sampling is Sampling.FIXED:
            self._check_fixed_batches()
        elif self.sampling is Sampling.SHUFFLED:
            self._check_shuffled_batches()
        else:
            self._check_poisson_sampling()
        if self.batches_per_pass is not None and self.sampling is not Sampling.SHUFFLED:
            raise ValueError("batches_per_pass is for sampling shuffled")
        if (self.record_every or self.num_steps) % (self.canary_period or 1):
            raise ValueError("canary_period must divide the steps between estimates")
        return self

    def _check_first_step(self) -> None:
        if self.sampling is not Sampling.FIXED or self.batch_size is None:
            raise ValueError(f"canary {self.canary} needs sampling fixed and batch_size")
        # By value: a resolved config gives all keys.
        for key in ("sample_rate", "canary_period"):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key}: canary {self.canary} enters the first step alone; drop it"
                )

    def _check_fixed_batches(self) -> None:
        if self.batch_size is None or self.canary_period is None:
            raise ValueError("sampling fixed needs batch_size and canary_period")
        if self.sample_rate != 1.0:
            raise ValueError("sampling fixed has no sample_rate")
        if not self.is_trained:
            raise ValueError(f"canary {self.canary} has no batches: sampling must be poisson")

    def _check_shuffled_batches(self) -> None:
        if "batches_per_pass" not in self.adversary.settings:
            raise ValueError(
                f"canary {self.canary} is not for shuffled batches: use canary worst_case, or"
                " sampling poisson"
            )
        if self.batches_per_pass is None:
            raise ValueError("sampling shuffled needs batches_per_pass")
        # By value: a resolved config gives all keys.
        for key in ("sample_rate", "batch_size", "canary_period"):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"sampling shuffled has no {key}: batches_per_pass says it all")
        if (self.record_every or self.num_steps) % self.batches_per_pass:
            raise ValueError(
                f"batches_per_pass {self.batches_per_pass} must divide the steps between estimates:"
                " passes are audited as a whole"
            )

    def _check_poisson_sampling(self) -> None:
        if self.batch_size is not None:
            raise ValueError(
                "batch_size is for sampling fixed; Poisson batches vary in size: give sample_rate"
                " = batch size / num_records instead"
            )
        if self.canary_period is not None:
            raise ValueError("canary_period is for sampling fixed")
        if "sample_rate" not in self.model_fields_set:
            raise ValueError("sampling poisson needs sample_rate")
        if self.is_trained and self.sample_rate < 1e-6:
            raise ValueError(
                "sample_rate is below 1e-6; rounded to 32 bits, it would change by more than .01 %"
            )

    @property
    def adversary(self) -> Adversary:
        """The canary's entry in the catalogue."""
        return adversary(self.canary)

    @property
    def scored_by(self) -> Score:
        """How its runs are scored, with the default filled in."""
        return self.adversary.score(self.score, has_classes=self._has_classes)

    @property
    def _has_classes(self) -> bool:
        """Whether its labels are classes, as far as it has any."""
        return self.loss.is_of_classes or not self.is_trained

    @property
    def observes_default(self) -> bool:
        """Whether its runs are observed as the default score needs it."""
        default = self.adversary.score(None, has_classes=self._has_classes)
        return default.observes == self.scored_by.observes

    @property
    def is_trained(self) -> bool:
        """Whether its runs train models."""
        return self.adversary.is_trained

    def fitting(self, num_runs: Sequence[int]) -> list[int]:
        """Those numbers of first runs that give an estimate; with one slot, worlds must be even."""
        least, step = (4, 2) if self.has_two_worlds and self.num_slots == 1 else (1, 1)
        return [
            count for count in num_runs if least <= count <= self.num_runs and count % step == 0
        ]

    @property
    def has_two_worlds(self) -> bool:
        """Whether each slot is in one of two worlds, and does not hold one of several values."""
        return not self.adversary.has_candidates

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
    def others(self) -> OtherRecords | None:
        """What other records contribute to shuffled batches, with the default filled in."""
        is_shuffled = self.sampling is Sampling.SHUFFLED
        return (self.other_records or OtherRecords.OPPOSITE) if is_shuffled else None

    @property
    def own_functions(self) -> list[str]:
        """The function that makes its model, if that is the user's own."""
        return [str(self.model)] if self.is_trained and is_own(self.model) else []

    @property
    def functions(self) -> list[str]:
        """Those that make its model, its canaries or draws, and its scores, and its exact curve."""
        entry = self.adversary
        named = (entry.function, entry.score(self.score).function, entry.optimise, entry.exact)
        return [*self.own_functions, *filter(None, named)]

    @property
    def draws_start(self) -> bool:
        """Whether every run draws initial parameters of its own."""
        return self.is_trained and self.start is Initialisation.PER_RUN

    @property
    def has_equal_steps(self) -> bool:
        """Whether the parameters are the sum of all noisy gradients, each with the same factor."""
        is_sum = self.optimizer is Optimizer.SGD
        is_constant = self.learning_rate_schedule is LearningRateSchedule.CONSTANT
        return not self.is_trained or (is_sum and is_constant)

    @property
    def simulates_noise(self) -> bool:
        """Whether its canaries are crafted by simulations with the audit's noise."""
        return "simulation" in self.adversary.settings and self.simulation is Simulation.NOISY

    @property
    def unused_keys(self) -> set[str]:
        """Keys that the chosen canary, model and optimizer do not use."""
        used = metadata_of(type(self), UsedIf)
        return {key for key, use in used.items() if not use.condition(self)}

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
        if self.adversary.in_first_step:
            return 1
        return self.num_steps // (self.batches_per_pass or self.canary_period or 1)

    @property
    def shards(self) -> list[str]:
        """Names of the shards. They are indices, so more runs add names and change none."""
        return [f"{index:05d}" for index in range(-(-self.total_runs // self.runs_per_shard))]

    def runs_of(self, shard: str) -> range:
        """The run indices of a shard."""
        first = int(shard) * self.runs_per_shard
        return range(self.total_runs)[first : first + self.runs_per_shard]
