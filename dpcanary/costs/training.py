"""How long models take to train: a few of them, a few steps, on random records."""

import contextlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpcanary.canaries import GradientCanary
from dpcanary.costs.measuring import BUDGET, Seconds, clock
from dpcanary.costs.shapes import Shape
from dpcanary.stages import TrainingStage
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.models import mechanism_of, module_of
from dpcanary.vocabulary import Canary, LearningRateSchedule, ModelKind, Score

# On the host nothing gains by more runs at once.
_MOST_ON_HOST = 256
_FEW_TESTS, _MOST_STEPS = 8, 200
# Records of a batch that convolutions are timed on: their time is proportional to them.
_CONVOLVED = 32

Progress = Callable[[int], object]


class _EnoughError(Exception):
    """Ends a training."""


@dataclass(frozen=True)
class Training:
    """Training of a shard's models. Units: a job, a model, a model-step.

    Make it by `training_probe`, which leaves out what the time does not depend on.

    Attributes:
        stage: what the runs are told.
        shape: of the dataset.
        factor: by how much larger the batches are than here.
        runs: of a shard.
        at_once: runs in memory at once, or None for as many as are fastest.
        device: where to train.
    """

    stage: TrainingStage
    shape: Shape
    factor: float
    runs: int
    at_once: int | None
    device: str

    def measure(self) -> Seconds:
        """See `Probe`."""
        train_little(self.device)  # what it loads is part of the start
        together, runs = self._together(), 1
        job, step, after = self._timed(runs, 2, tests=_FEW_TESTS)
        while (more := min(together, int(BUDGET / 4 / step))) >= 2 * runs:
            runs = more
            _, step, after = self._timed(runs, 3, tests=_FEW_TESTS)
        tests, later = _FEW_TESTS, after
        while runs * later < BUDGET and tests < self.shape.num_test:
            tests = min(4 * tests, self.shape.num_test)
            _, _, later = self._timed(runs, 2, tests=tests)
        each = max(0.0, later - after) / max(1, tests - _FEW_TESTS)
        model = max(0.0, after + each * (self.shape.num_test - _FEW_TESTS))
        steps = max(3, min(_MOST_STEPS, int(BUDGET / (runs * step))))
        _, step, _ = self._timed(runs, steps, tests=_FEW_TESTS)
        return job, model, step * self.factor

    def _together(self) -> int:
        """Runs that training puts in a block, by what it says after the first step."""
        blocks = list[int]()

        def on_progress(model_steps: int) -> None:
            blocks.append(model_steps)
            raise _EnoughError

        with contextlib.suppress(_EnoughError):
            self._train(self.runs, 1, 0, self.at_once, on_progress)
        return blocks[0]

    def _timed(self, runs: int, steps: int, *, tests: int) -> tuple[float, float, float]:
        """Seconds of a block before its steps, of a model-step, of a model after its steps."""
        now, marks, done = clock(self.device), list[float](), itertools.count(1)

        def on_progress(model_steps: int) -> None:
            if next(done) in (1, steps):  # a look at the clock of a GPU waits for it
                marks.append(now())

        start, end = self._train(runs, steps, tests, runs, on_progress)
        step = max(1e-9, (marks[1] - marks[0]) / (steps - 1))
        before, after = marks[0] - step - start, end - marks[1]
        return max(0.0, before), step / runs, max(1e-9, after / runs)

    def _train(
        self, runs: int, steps: int, tests: int, at_once: int | None, on_progress: Progress
    ) -> tuple[float, float]:
        """When the training began and ended."""
        stage, shape, now = self.stage, self.shape, clock(self.device)
        features, labels = random_features(shape, tests)
        records = replace(random_records(shape), test_features=features, test_labels=labels)
        module = module_of(stage, shape=shape.features, num_classes=shape.num_classes)
        start = now()
        train_ensemble(
            module=module,
            records=records,
            canary=GradientCanary(0),
            dpsgd=mechanism_of(stage, record_steps=(steps,), noise_multiplier=1.0),
            runs=range(runs),
            seed=0,
            device=torch.device(self.device),
            initialisation=stage.initialisation,
            precision=stage.precision,
            runs_at_once=at_once,
            on_progress=on_progress,
        )
        return start, now()


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
    most = runs if device == "cuda" else min(runs, _MOST_ON_HOST)
    return Training(*lightened(neutral(stage), shape), most, at_once, device)


def train_little(device: str) -> None:
    """Trains two small models for a step: what training loads when it is first used."""
    shape = Shape(num_records=8, num_auxiliary=0, num_test=2, features=(4,), num_classes=2)
    for rate in (1.0, 0.25):
        train_ensemble(
            module=nn.Linear(4, 2),
            records=random_records(shape),
            canary=GradientCanary(0),
            dpsgd=DPSGD(1.0, 1.0, 1e-3, (1,), rate),
            runs=range(2),
            seed=0,
            device=torch.device(device),
        )


def random_features(shape: Shape, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Standard normal features, shape (count, ...), and labels of all classes in turn."""
    # The same few numbers over and over: to draw gigabytes would take longer than to use them.
    size = (min(count, 4096), *shape.features)
    block = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    return np.resize(block, (count, *shape.features)), np.arange(count) % shape.num_classes


def random_records(shape: Shape) -> Records:
    """Private records, the first of them the target; no test records."""
    features, labels = random_features(shape, shape.num_records)
    return Records(features, labels, features[:0], labels[:0], shape.num_classes, target=0)


def neutral(stage: TrainingStage, **changes: object) -> TrainingStage:
    """The same settings for all audits whose steps take the same time, so that none diverges.

    Args:
        stage: what an audit's runs are told.
        changes: further settings.
    """
    known: dict[str, object] = {
        "seed": 0,
        "model_seed": 0,
        "canary": Canary.GRADIENT,
        "canary_period": stage.canary_period and 1,
        "score": Score.COORDINATE,
        "learning_rate": 1e-3,
        "learning_rate_schedule": LearningRateSchedule.CONSTANT,
        "max_grad_norm": 1.0,
        "num_steps": 1,
        "record_steps": (1,),
    }
    return stage.model_copy(update={**known, **changes})


def lightened(stage: TrainingStage, shape: Shape) -> tuple[TrainingStage, Shape, float]:
    """Both with smaller batches where steps take long and are proportional; by how much smaller.

    Args:
        stage: what the runs are told.
        shape: of the dataset.
    """
    batch = stage.batch_size or math.ceil(stage.sample_rate * shape.num_records)
    if stage.model not in (ModelKind.CONVNET, ModelKind.RESNET18) or batch <= _CONVOLVED:
        return stage, shape, 1.0
    factor, size = batch / _CONVOLVED, stage.batch_size and _CONVOLVED
    fewer = replace(shape, num_records=math.ceil(shape.num_records / factor))
    return stage.model_copy(update={"batch_size": size}), fewer, factor
