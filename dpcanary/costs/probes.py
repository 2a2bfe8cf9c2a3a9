"""Probes: a small part of some work, done here to estimate how long all of it takes."""

import math
import multiprocessing
import signal
import threading
import time
import timeit
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm

from dpcanary.adversaries.adversary import CraftingCost
from dpcanary.adversaries.adversary_settings import CraftingStage, MetagradientStage
from dpcanary.adversaries.crafting import Crafting, craft_canaries, optimise_canaries
from dpcanary.data.canaries import Canary, CanarySet, GradientCanary, InputCanary
from dpcanary.data.observations import Observation
from dpcanary.data.records import Labels, Records, Split
from dpcanary.experiment.audit_config import Audit
from dpcanary.training.models import descent, module_of
from dpcanary.training.pretraining import pretrain
from dpcanary.training.shard import train_shard
from dpcanary.training.simulated_trainings import Reference, train_reference
from dpcanary.training.training_settings import (
    LearningRateSchedule,
    ModelKind,
    PretrainingStage,
    ReferenceStage,
    Sampling,
    TrainingStage,
)

# Seconds that a probe spends on each thing it measures, unless a single unit takes longer.
BUDGET = 0.4
# Beyond this number, jobs hardly slow each other further; each process holds its own PyTorch.
_MOST_WORKERS = 8
# The time of one of each of a probe's units.
Seconds = tuple[float, ...]


# On the host, more runs at once are not faster.
_MOST_ON_HOST = 256
_MOST_TESTS, _MOST_STEPS = 512, 5_000
# Records of the batches that convolutions are timed on; their time is proportional to these.
_CONVOLVED = 32
# Settings that do not affect the time of a step, so that one probe serves many audits.
_NEUTRAL = {
    "seed": 0,
    "model_seed": 0,
    "learning_rate": 1e-3,
    "learning_rate_schedule": LearningRateSchedule.CONSTANT,
    "canary_period": 1,
    "max_grad_norm": 1.0,
    "num_steps": 1,
    "record_steps": (1,),
    "crafting_steps": 1,
}

Stage = TypeVar("Stage", bound=ReferenceStage)


@dataclass(frozen=True)
class Shape:
    """How many private, auxiliary and test records a dataset has, and the shape of one record.

    Labels are numbers if there is one class. Features are ids of tokens below `num_ids`, if it is
    above 0. `num_source`, the records of all parts of its source, affects no probe.
    """

    num_records: int
    num_auxiliary: int
    num_test: int
    features: tuple[int, ...]
    num_classes: int
    num_ids: int = 0
    num_source: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Probe:
    """A small part of some work. Equal probes run once: all that affects the time is in here.

    Attributes:
        work: does it in a process with one thread, and returns the time of each unit.
        stage: the settings of the job.
        shape: of the dataset.
        factor: size of the job's batches over that of the probe's.
        device: `cpu` or `cuda`; on `cuda` one job runs at a time.
        num_slots: slots per run.
        runs: runs per shard.
        at_once: runs in memory at once; None for the fastest number.
        unit: what the time to craft canaries is proportional to.
    """

    work: Callable[["Probe"], Seconds]
    stage: Any
    shape: Shape
    factor: float
    device: str
    num_slots: int = 1
    runs: int = 1
    at_once: int | None = None
    unit: str = ""

    def measure(self) -> Seconds:
        """Does the work; in another process, whose function needs a name."""
        return self.work(self)

    def now(self) -> float:
        """Seconds of processor time, which other programs do not affect; on a GPU, elapsed ones."""
        if self.device != "cuda":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def seconds(self, task: Callable[[], object]) -> float:
        """How long a task takes: the faster of two times, as the first one loads and allocates."""
        return min(timeit.repeat(task, timer=self.now, repeat=2, number=1))

    def seconds_per_unit(self, task: Callable[[int], object]) -> tuple[float, float]:
        """How long a task takes: what it needs once, and for each unit of its work."""
        first, units = self.seconds(partial(task, 1)), 2
        while (beyond := self.seconds(partial(task, units)) - first) < BUDGET / 4:
            units *= 4
        rate = beyond / (units - 1)
        return max(first - rate, 0.0), rate * self.factor


def measured(
    probes: Collection[Probe], *, num_workers: int, on_progress: Callable[[int], object]
) -> dict[Probe, Seconds]:
    """Runs each probe once, as many at a time as jobs, since these share memory bandwidth."""
    unique = list(dict.fromkeys(probes))
    on_gpu = any(probe.device == "cuda" for probe in unique)
    workers = 1 if on_gpu else min(num_workers, _MOST_WORKERS)
    context = multiprocessing.get_context("spawn")  # threads do not survive a fork
    times: dict[Probe, Seconds] = {}
    with ProcessPoolExecutor(workers, context, _start_worker) as pool:
        # Processes that start meanwhile never get Ctrl-C, of which each would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            waiting = [pool.submit(Probe.measure, probe) for probe in unique]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            for probe, future in zip(unique, waiting, strict=True):
                times[probe] = future.result()
                on_progress(1)
        except KeyboardInterrupt:
            for worker in multiprocessing.active_children():
                worker.kill()
            raise
    return times


def _start_worker() -> None:
    torch.set_num_threads(1)
    # By default it is one for all processes, of which a worker that is killed leaves a part.
    tqdm.set_lock(threading.RLock())


def training_probe(stage: TrainingStage, shape: Shape, audit: Audit, *, device: str) -> Probe:
    """The probe of an audit's shards. Its units are jobs, models and model-steps."""
    # With one slot, these take about as long as a change, so one probe serves all.
    shared = audit.num_slots == 1 and stage.observe in (Observation.LOGITS, Observation.VALUE)
    alike = {"observe": Observation.CHANGE} if shared else {}
    most = audit.total_runs if device == "cuda" else _MOST_ON_HOST
    return Probe(
        _train,
        *lightened(neutral(stage, **alike), shape),
        device,
        num_slots=audit.num_slots,
        runs=min(audit.runs_per_shard, audit.total_runs, most),
        at_once=audit.runs_at_once,
    )


def _train(probe: Probe) -> Seconds:
    """Times one run, some runs, and some runs with more steps; all three units follow."""
    single = _seconds(probe, 1, 1)
    runs = max(2, min(probe.runs, int(BUDGET / single)))
    some = _seconds(probe, runs, 1)
    steps = max(3, min(_MOST_STEPS, int(BUDGET / some)))
    all_steps = _seconds(probe, runs, steps)
    # On a busy machine, the first step may take longer than all steps do later.
    beyond = all_steps - some if all_steps > some else all_steps
    step = beyond / (runs * (steps - 1))
    model = max(0.0, (some - single) / (runs - 1) - step)
    tested = max(1.0, probe.shape.num_test / _MOST_TESTS)
    return max(0.0, single - model - step), model * tested, step * probe.factor


def _seconds(probe: Probe, runs: int, steps: int) -> float:
    """How long a shard takes."""
    shape, slots = probe.shape, range(probe.num_slots)
    stage = probe.stage.model_copy(update={"record_steps": (steps,)})
    private = random_records(shape, shape.num_records)
    test = random_records(shape, min(_MOST_TESTS, shape.num_test))
    canaries: list[Canary]
    if not stage.observe.is_of_gradients:
        canaries = [InputCanary(private.features[slot], 0, slot) for slot in slots]
    else:
        canaries = [GradientCanary(slot, slot) for slot in slots]
    return probe.seconds(
        lambda: train_shard(
            stage,
            data=Split(private, private[:0], test),
            canaries=canaries,
            noise_multiplier=1.0 if stage.is_private else 0.0,
            runs=range(runs),
            inputs={},
            device=torch.device(probe.device),
            runs_at_once=probe.at_once,
        )
    )


def random_records(shape: Shape, count: int) -> Records:
    """Records with random features, whose labels go through all classes, or 0 and 1, in turn."""
    # The numbers repeat: drawing gigabytes would take longer than using them.
    size = (min(count, 4096), *shape.features)
    rng = np.random.default_rng(0)
    block: NDArray[Any] = rng.standard_normal(size, dtype=np.float32)
    if shape.num_ids:
        block = rng.integers(0, shape.num_ids, size)
    labels: Labels = np.arange(count) % shape.num_classes
    if shape.num_classes == 1:
        labels = (np.arange(count) % 2).astype(np.float32)
    return Records(np.resize(block, (count, *shape.features)), labels)


def neutral(stage: Stage, **changes: object) -> Stage:
    """The stage with fixed values of what does not affect the time; with these no run diverges."""
    used = {key: value for key, value in _NEUTRAL.items() if getattr(stage, key, None) is not None}
    return stage.model_copy(update={**used, **changes})


def lightened(stage: Stage, shape: Shape) -> tuple[Stage, Shape, float]:
    """Stage and shape with smaller batches if the model convolves, and how many times smaller."""
    size, rate = getattr(stage, "batch_size", None), getattr(stage, "sample_rate", 1.0)
    batch = size or math.ceil(rate * shape.num_records)
    if stage.model in (ModelKind.LINEAR, ModelKind.MLP) or batch <= _CONVOLVED:
        return stage, shape, 1.0
    fewer = replace(shape, num_records=math.ceil(shape.num_records * _CONVOLVED / batch))
    light = stage.model_copy(update={"batch_size": _CONVOLVED}) if size else stage
    return light, fewer, batch / _CONVOLVED


def reference_probe(stage: ReferenceStage, shape: Shape, *, device: str) -> Probe:
    """The probe of a reference model. Its units are jobs and steps."""
    private = replace(shape, num_auxiliary=0, num_test=0)
    return Probe(_train_reference, *lightened(neutral(stage), private), device)


def pretraining_probe(stage: PretrainingStage, shape: Shape, *, device: str) -> Probe:
    """The probe of a pretrained model. Its units are jobs and steps."""
    few = replace(shape, num_records=stage.pretraining.batch_size, num_auxiliary=0, num_test=0)
    settings = stage.pretraining.model_copy(update={"dataset": None, "learning_rate": 1e-6})
    alike = stage.model_copy(update={"model_seed": 0, "pretraining": settings})
    return Probe(_pretrain, alike, few, 1.0, device)


def crafting_probe(stage: CraftingStage, cost: CraftingCost, shape: Shape, *, device: str) -> Probe:
    """The probe of an audit's canaries. Its units are jobs, and what the cost names."""
    private = replace(shape, num_auxiliary=0, num_test=0)
    if cost is CraftingCost.NUM_STEPS:
        return Probe(_craft, *lightened(neutral(stage), private), device, unit=cost)
    # No batches are drawn.
    alike = neutral(stage, sampling=Sampling.POISSON, sample_rate=1.0, batch_size=None)
    return Probe(_craft, alike, private, 1.0, device, unit=cost)


def optimising_probe(stage: MetagradientStage, shape: Shape, *, device: str) -> Probe:
    """The probe of optimised canaries. Its units are jobs, and steps of all trainings together."""
    enough = min(shape.num_records, stage.num_slots + stage.metagradient.batch_size)
    few = replace(shape, num_records=enough, num_auxiliary=0, num_test=0)
    return Probe(_optimise, stage.model_copy(update={"seed": 0}), few, 1.0, device)


def _optimise(probe: Probe) -> Seconds:
    shape, stage = probe.shape, probe.stage
    private = random_records(shape, shape.num_records)

    def optimised(steps: int) -> None:
        short = stage.metagradient.model_copy(update={"num_metasteps": 1, "num_steps": steps})
        optimise_canaries(
            stage.model_copy(update={"metagradient": short}),
            private=private,
            device=torch.device(probe.device),
            progress=lambda total, unit: tqdm(disable=True),
        )

    return probe.seconds_per_unit(optimised)


def _pretrain(probe: Probe) -> Seconds:
    shape, stage = probe.shape, probe.stage
    public = random_records(shape, shape.num_records)

    def pretrained(steps: int) -> None:
        short = stage.pretraining.model_copy(update={"num_steps": steps})
        pretrain(
            stage.model_copy(update={"pretraining": short}),
            data=Split(public, public[:0], public[:0]),
            public=public,
            device=torch.device(probe.device),
        )

    return probe.seconds_per_unit(pretrained)


def _train_reference(probe: Probe) -> Seconds:
    shape, stage = probe.shape, probe.stage
    return probe.seconds_per_unit(
        lambda steps: train_reference(
            module=module_of(stage, shape=shape.features, num_classes=shape.num_classes),
            records=random_records(shape, shape.num_records),
            dpsgd=replace(descent(stage, loss=stage.loss), record_steps=(steps,)),
            initialisation=stage.initialisation,
            device=torch.device(probe.device),
        )
    )


def _craft(probe: Probe) -> Seconds:
    if probe.unit in (CraftingCost.NUM_CLASSES, CraftingCost.NOTHING):
        # The probe tries all labels at once: with fewer classes the model would be smaller.
        return probe.seconds(lambda: _crafted(probe, 0)), 0.0
    return probe.seconds_per_unit(lambda units: _crafted(probe, units))


def _crafted(probe: Probe, units: int) -> None:
    shape = probe.shape
    changes = {probe.unit: units} if probe.unit in CraftingStage.model_fields else {}
    stage = probe.stage.model_copy(update=changes)
    module = module_of(stage, shape=shape.features, num_classes=shape.num_classes)
    start = parameters_to_vector(module.parameters()).detach().numpy()
    private = random_records(shape, max(shape.num_records, shape.num_classes))
    # Every slot needs an auxiliary record of its own.
    candidates = units if probe.unit == CraftingCost.NUM_AUXILIARY else 0
    least = 1 if shape.num_classes > 1 else 2  # the extremes of numbers are canaries' labels
    auxiliary = random_records(shape, max(candidates, stage.num_slots, least))
    labels = private.labels[: stage.num_slots].tolist()
    input_canaries = (
        InputCanary(private.features[slot], label, slot) for slot, label in enumerate(labels)
    )
    craft_canaries(
        Crafting(
            stage=stage,
            data=Split(private, auxiliary, auxiliary[:0]),
            reference=Reference(start, np.zeros(len(private))),
            noise_multiplier=1.0,  # time does not depend on it
            device=torch.device(probe.device),
            optimised=CanarySet(tuple(input_canaries), tuple(labels)),
        )
    )
