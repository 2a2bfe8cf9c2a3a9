"""How long models take to train: a few of them, a few steps, on random records."""

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from dpcanary.canaries import GradientCanary
from dpcanary.costs.measuring import BUDGET, Timing, clock
from dpcanary.costs.shapes import Shape
from dpcanary.costs.stand_ins import CONVOLVED, is_convolved, random_features, random_records
from dpcanary.stages import TrainingStage
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.memory import free_bytes, runs_that_fit
from dpcanary.training.models import mechanism_of, module_of
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.optimizers import state_tensors
from dpcanary.training.paths.choose import basis_of, path_of
from dpcanary.training.paths.path import Path
from dpcanary.training.placement import placement_of, table_of
from dpcanary.vocabulary import Canary, LearningRateSchedule, Score

# On the host no path gains by more runs at once.
_MOST_ON_HOST = 256
_FEW_TESTS, _MOST_STEPS = 8, 200
_CANARY = GradientCanary(0)


@dataclass(frozen=True)
class Training:
    """Training of a shard's models. Units: a job, a model, a model-step.

    Make it by `training_probe`, which leaves out what the time does not depend on.

    Attributes:
        stage: what the runs are told.
        shape: of the dataset.
        runs: of a shard.
        at_once: runs in memory at once, or None for as many as fit.
        device: where to train.
    """

    stage: TrainingStage
    shape: Shape
    runs: int
    at_once: int | None
    device: str

    @property
    def on_gpu(self) -> bool:
        """See `Probe`."""
        return self.device == "cuda"

    def measure(self) -> Timing:
        """See `Probe`. The memory is that of the data and the runs, on the host or on the GPU."""
        train_little(self.device)  # what it loads is part of the start
        ensemble = _Ensemble(self)
        alone = few = ensemble.timed(runs=1, steps=2)
        together, memory = ensemble.planned()
        runs = 1
        while (more := min(together, int(BUDGET / 4 / few.step))) >= 2 * runs:
            runs, few = more, ensemble.timed(runs=more, steps=3)
        many = ensemble.timed(
            runs=runs,
            steps=max(3, min(_MOST_STEPS, int(BUDGET / (runs * few.step)))),
            tests=max(_FEW_TESTS, int(_FEW_TESTS * BUDGET / (runs * few.model))),
        )
        # What a model needs before its first step, such as parameters of its own, and after it.
        before = max(0.0, many.job - alone.job) / max(1, runs - 1)
        more_tests, all_tests = many.tests - few.tests, self.shape.num_test - few.tests
        after = few.model + max(0.0, many.model - few.model) * all_tests / max(1, more_tests)
        job = max(0.0, alone.job - before)
        return Timing((job, before + after, many.step * ensemble.factor), memory)


def training_probe(
    stage: TrainingStage, shape: Shape, *, runs: int, at_once: int | None, device: str
) -> Training:
    """The probe of an audit: the same for all audits whose models take the same time.

    Args:
        stage: what the audit's runs are told.
        shape: of its dataset.
        runs: of a shard.
        at_once: runs in memory at once, if that is fixed.
        device: `cpu` or `cuda`.
    """
    neutral = {
        "seed": 0,
        "model_seed": 0,
        "canary": Canary.GRADIENT,
        "score": Score.COORDINATE,
        "learning_rate": 1e-3,  # nothing must diverge
        "learning_rate_schedule": LearningRateSchedule.CONSTANT,
        "max_grad_norm": 1.0,
        "num_steps": 1,
        "record_steps": (1,),
        "canary_period": stage.canary_period and 1,
    }
    most = runs if device == "cuda" else min(runs, _MOST_ON_HOST)
    known = replace(shape, num_source=0, assumption="")
    return Training(stage.model_copy(update=neutral), known, most, at_once, device)


@dataclass(frozen=True)
class _Seconds:
    """Of an ensemble.

    Attributes:
        job: seconds before its steps.
        model: seconds per model after them, with accuracy on the test records.
        step: seconds per model-step.
        tests: test records.
    """

    job: float
    model: float
    step: float
    tests: int


class _Ensemble:
    """Ensembles of a probe's kind.

    Attributes:
        factor: on their seconds per model-step, where they have smaller batches.
    """

    def __init__(self, probe: Training) -> None:
        stage, shape = probe.stage, probe.shape
        self._probe, self.factor = probe, 1.0
        self._batch = stage.batch_size or math.ceil(stage.sample_rate * shape.num_records)
        if is_convolved(stage.model) and self._batch > CONVOLVED:
            self.factor = self._batch / CONVOLVED
            shape = replace(shape, num_records=math.ceil(shape.num_records / self.factor) + 1)
            stage = stage.model_copy(update={"batch_size": stage.batch_size and CONVOLVED})
        self._module: nn.Module = module_of(
            stage, shape=shape.features, num_classes=shape.num_classes
        )
        self._records: Records = random_records(shape)
        self._dpsgd: DPSGD = mechanism_of(stage, record_steps=(1,), noise_multiplier=1.0)
        self._device = torch.device(probe.device)

    def timed(self, *, runs: int, steps: int, tests: int = _FEW_TESTS) -> _Seconds:
        """Trains some runs for two steps or more."""
        now, marks = clock(self._probe.device), list[float]()
        tests = min(tests, self._probe.shape.num_test)
        features, labels = random_features(self._probe.shape, tests)
        done = itertools.count(1)

        def on_progress(model_steps: int) -> None:
            if next(done) in (1, steps):  # a look at the clock of a GPU waits for it
                marks.append(now())

        start = now()
        train_ensemble(
            module=self._module,
            records=replace(self._records, test_features=features, test_labels=labels),
            canary=_CANARY,
            dpsgd=replace(self._dpsgd, record_steps=(steps,)),
            runs=range(runs),
            seed=0,
            device=self._device,
            initialisation=self._probe.stage.initialisation,
            precision=self._probe.stage.precision,
            runs_at_once=runs,
            on_progress=on_progress,
        )
        end, step = now(), max(1e-9, (marks[-1] - marks[0]) / (steps - 1))
        before, after = marks[0] - step - start, (end - marks[-1]) / runs
        return _Seconds(max(0.0, before), max(1e-9, after), step / runs, tests)

    def planned(self) -> tuple[int, int]:
        """Runs at once, and bytes that they and the data take."""
        path, tables = self._path()
        states = 1 + state_tensors(self._dpsgd.optimizer)
        each = path.bytes_per_run(self._batch) + 4 * states * path.num_parameters
        fitting = runs_that_fit(
            bytes_per_run=each,
            free=free_bytes(self._device),
            num_workers=1,
            num_runs=self._probe.runs,
            together=path.runs_together,
        )
        together = min(self._probe.at_once or fitting, self._probe.runs)
        once = self._probe.shape.file_bytes + tables
        if isinstance(path, ModulePath) and not path.vectorises:  # one run's activations
            apart = ModulePath(self._module, path.table, self._dpsgd.loss, vectorise_runs=True)
            once += apart.bytes_per_run(self._batch) - path.bytes_per_run(self._batch)
        return together, together * each + once

    def _path(self) -> tuple[Path, int]:
        """How the models are trained, and the bytes of its records."""
        records, dpsgd, stage = self._records, self._dpsgd, self._probe.stage
        table = table_of(records, _CANARY, self._device)
        count = sum(parameter.numel() for parameter in self._module.parameters())
        placement = placement_of(_CANARY, records=records, dpsgd=dpsgd, num_parameters=count)
        basis = basis_of(
            self._module,
            table,
            placement,
            canary=_CANARY,
            dpsgd=dpsgd,
            initialisation=stage.initialisation,
        )
        path = path_of(self._module, table, dpsgd=dpsgd, precision=stage.precision, basis=basis)
        held = {id(kept): kept.features.nbytes for kept in (table, path.table)}
        return path, int(sum(held.values()) * self.factor)


def train_little(device: str) -> None:
    """Trains two small models for a step: what training loads when it is first used."""
    shape = Shape(num_records=8, num_auxiliary=0, num_test=2, features=(4,), num_classes=2)
    for rate in (1.0, 0.25):
        train_ensemble(
            module=nn.Linear(4, 2),
            records=random_records(shape),
            canary=_CANARY,
            dpsgd=DPSGD(1.0, 1.0, 1e-3, (1,), rate),
            runs=range(2),
            seed=0,
            device=torch.device(device),
        )
