"""Probes of training: a few models, for a few steps, on random records."""

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from dpcanary.canaries import Canary, GradientCanary, InputCanary
from dpcanary.costs.probing import BUDGET, Probe, Seconds
from dpcanary.costs.shapes import Shape
from dpcanary.observations import Observation
from dpcanary.records import Records, Split
from dpcanary.settings.audit import Audit
from dpcanary.training.mechanism_stage import ReferenceStage
from dpcanary.training.options import LearningRateSchedule, ModelKind
from dpcanary.training.shard import train_shard
from dpcanary.training.stage import TrainingStage

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
    one = _seconds(probe, 1, 1)
    runs = max(2, min(probe.runs, int(BUDGET / one)))
    some = _seconds(probe, runs, 1)
    steps = max(3, min(_MOST_STEPS, int(BUDGET / some)))
    all_steps = _seconds(probe, runs, steps)
    # On a busy machine, the first step may take longer than all steps do later.
    beyond = all_steps - some if all_steps > some else all_steps
    step = beyond / (runs * (steps - 1))
    model = max(0.0, (some - one) / (runs - 1) - step)
    tested = max(1.0, probe.shape.num_test / _MOST_TESTS)
    return max(0.0, one - model - step), model * tested, step * probe.factor


def _seconds(probe: Probe, runs: int, steps: int) -> float:
    """How long a shard takes."""
    shape, slots = probe.shape, range(probe.num_slots)
    stage = probe.stage.model_copy(update={"record_steps": (steps,)})
    assert isinstance(stage, TrainingStage)
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
            noise_multiplier=0.0 if stage.max_grad_norm is None else 1.0,
            runs=range(runs),
            inputs={},
            device=torch.device(probe.device),
            runs_at_once=probe.at_once,
        )
    )


def random_records(shape: Shape, count: int) -> Records:
    """Records with standard normal features, whose labels go through all classes in turn."""
    # The numbers repeat: drawing gigabytes would take longer than using them.
    size = (min(count, 4096), *shape.features)
    block = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    return Records(np.resize(block, (count, *shape.features)), np.arange(count) % shape.num_classes)


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
