"""The shard of a job: its runs trained as a stage says."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.data.canaries import Canary
from dpcanary.data.observations import Shard, shard_header
from dpcanary.data.records import Split
from dpcanary.training.ensemble_plan import Plan
from dpcanary.training.models import mechanism_of, module_of
from dpcanary.training.runs import Progress, baseline_of, no_progress, train_runs
from dpcanary.training.training_settings import InitialWeights, TrainingStage, WorldAssignment


def train_shard(
    stage: TrainingStage,
    *,
    data: Split,
    canaries: Sequence[Canary],
    noise_multiplier: float,
    runs: range,
    inputs: Mapping[str, str],
    device: torch.device,
    pretrained: NDArray[np.float32] | None = None,
    num_threads: int = 1,
    runs_at_once: int | None = None,
    on_progress: Progress = no_progress,
) -> Shard:
    """Trains some runs of an audit.

    Args:
        stage: the settings of the runs.
        data: private and test records.
        canaries: one for each slot.
        noise_multiplier: sigma.
        runs: run indices; those of one shard may all be in one world.
        inputs: hashes of the files that data and canaries come from, for the header.
        device: where to compute.
        pretrained: parameters of a pretrained model, in the module's order.
        num_threads: see `ensemble.train_ensemble`, also for the next two.
        runs_at_once: None for as many as fit into memory.
        on_progress: called with the number of model-steps that are done.

    Raises:
        InputError: if a canary or the model does not fit the records, or a run diverges.
    """
    start = time.perf_counter()
    shape = data.private.features.shape[1:]
    of_secrets = stage.worlds is WorldAssignment.CANDIDATES
    plan = Plan(
        module=module_of(stage, shape=shape, num_classes=data.num_classes, pretrained=pretrained),
        records=data.private,
        test_records=data.test,
        canaries=canaries,
        dpsgd=mechanism_of(
            stage, record_steps=stage.record_steps, noise_multiplier=noise_multiplier
        ),
        seed=stage.seed,
        observe=stage.observe,
        worlds=stage.worlds,
        initialisation=stage.initialisation,
        initial_weights=stage.initial_weights or InitialWeights.PYTORCH,
        device=device,
        num_candidates=data.num_classes if of_secrets else None,
    )
    result = train_runs(
        plan, runs, num_threads=num_threads, runs_at_once=runs_at_once, on_progress=on_progress
    )
    header = shard_header(
        settings=stage.model_dump(mode="json"),
        noise_multiplier=noise_multiplier,
        inputs=inputs,
        device=str(device),
        seconds=time.perf_counter() - start,
        packages=["numpy", "torch"],
        num_candidates=plan.num_candidates,
    )
    return Shard(
        header={**header, "baseline": baseline_of(data.test, stage.loss)},
        run=result.runs,
        world=result.worlds.astype(np.uint32 if of_secrets else np.uint8),
        step=np.array(stage.record_steps),
        observation=result.observations,
        test_accuracy=result.test_accuracy,
    )
