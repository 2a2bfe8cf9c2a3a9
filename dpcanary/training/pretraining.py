"""Pretraining: the parameters that all runs start from, trained without privacy on public records.

Both worlds start from them, so an audit is as valid as without. What is pretrained on is not
protected, so no private record may be among it.
"""

from collections.abc import Callable
from math import inf

import numpy as np
import torch

from dpcanary.errors import InputError
from dpcanary.records import Records, Split
from dpcanary.training.accuracy import accuracy_of
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.known_batches import KnownBatches
from dpcanary.training.mechanism_stage import PretrainingStage
from dpcanary.training.models import learning_rates, module_of
from dpcanary.training.options import Initialisation
from dpcanary.training.pretrained import Pretrained
from dpcanary.training.purposes import Purpose
from dpcanary.training.simulation import Simulation, check_finite


def pretrain(
    stage: PretrainingStage,
    *,
    data: Split,
    public: Records,
    device: torch.device,
    on_progress: Callable[[int], object] = lambda steps: None,
) -> Pretrained:
    """Trains a model on public records, without clipping and noise.

    Batches are pieces of a random order of the records, drawn anew for every epoch.

    Args:
        stage: the model and its training.
        data: of the audit, which has the classes and the test records.
        public: records to train on; see `public_records.public_records`.
        device: where to compute.
        on_progress: called with the number of steps just done.

    Raises:
        InputError: if the public records have other features or more classes than the audit's,
            there are too few for a batch, or the training diverges.
    """
    told, shape = stage.pretraining, data.private.features.shape[1:]
    if public.features.shape[1:] != shape:
        raise InputError(
            f"pretraining: its records have features of shape {public.features.shape[1:]}, and the"
            f" audited ones {shape}"
        )
    if public.num_classes > data.num_classes:
        raise InputError(
            f"pretraining: its records have labels up to {public.num_classes - 1}, and the audited"
            f" ones up to {data.num_classes - 1}: give it records with the same classes"
        )
    batches = KnownBatches(
        np.arange(len(public)),
        batch_size=told.batch_size,
        seed=stage.model_seed,
        purpose=Purpose.PRETRAINING_BATCHES,
    )
    descent = DPSGD(
        noise_multiplier=0.0,
        max_grad_norm=inf,
        learning_rate=learning_rates(
            told.learning_rate, told.learning_rate_schedule, num_steps=told.num_steps
        ),
        record_steps=(told.num_steps,),
        optimizer=told.optimizer,
        momentum=told.momentum,
        loss=stage.loss,
    )
    module = module_of(stage, shape=shape, num_classes=data.num_classes)
    simulation = Simulation(module, public, descent, Initialisation.FIXED, device)
    ones = np.ones((1, told.batch_size), np.float32)
    for step in range(told.num_steps):
        simulation.advance(step, batches.at(step), ones, divisor=told.batch_size)
        on_progress(1)
    parameters = simulation.decoded(simulation.buffer).astype(np.float32)
    check_finite("pretraining", descent, parameters)
    accuracy = float("nan")
    if len(data.test):
        found = accuracy_of(simulation.path, torch.from_numpy(parameters).to(device), data.test)
        accuracy = float(found[0])
    return Pretrained(parameters[0], accuracy)
