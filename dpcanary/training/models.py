"""From the names in a config to a module and a mechanism."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from dpcanary.errors import InputError
from dpcanary.stages import MechanismStage, ReferenceStage
from dpcanary.training.architectures import ARCHITECTURES
from dpcanary.training.initialisation import NO_RUN, redraw
from dpcanary.training.inputs import DPSGD, Schedule
from dpcanary.vocabulary import Activation, LearningRateSchedule, ModelKind

_ACTIVATIONS = {
    Activation.TANH: nn.Tanh,
    Activation.RELU: nn.ReLU,
    Activation.SIGMOID: nn.Sigmoid,
}


def module_of(stage: ReferenceStage, *, shape: Sequence[int], num_classes: int) -> nn.Module:
    """The module that a stage names, with parameters drawn by its `model_seed`.

    Args:
        stage: names the model.
        shape: of one record's features.
        num_classes: outputs.

    Raises:
        InputError: if the features do not have the shape that the model takes.
    """
    with torch.random.fork_rng(devices=[]):  # making layers draws from PyTorch's one generator
        module = _made(stage, tuple(shape), num_classes)
        redraw(module, seed=stage.model_seed, run=NO_RUN)
    return module


def _made(stage: ReferenceStage, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    if stage.model in (ModelKind.LINEAR, ModelKind.MLP):
        if len(shape) != 1:
            raise InputError(f"model {stage.model} takes flat features, not of shape {shape}")
        return _perceptron([*shape, *stage.hidden_sizes, num_classes], stage.activation)
    small = stage.model is ModelKind.CONVNET and shape[1:] != (32, 32)
    if len(shape) != 3 or shape[0] != 3 or small:
        raise InputError(f"model {stage.model} takes images of shape (3, 32, 32), not {shape}")
    return ARCHITECTURES[stage.model](num_classes)


def _perceptron(widths: Sequence[int], activation: Activation) -> nn.Module:
    layers: list[nn.Module] = []
    for ins, outs in pairwise(widths):
        layers += [nn.Linear(ins, outs), _ACTIVATIONS[activation]()]
    return layers[0] if len(widths) == 2 else nn.Sequential(*layers[:-1])


def mechanism_of(
    stage: MechanismStage, *, record_steps: tuple[int, ...], noise_multiplier: float
) -> DPSGD:
    """The mechanism that a stage is told, with its noise."""
    return DPSGD(
        noise_multiplier=noise_multiplier,
        max_grad_norm=stage.max_grad_norm,
        learning_rate=schedule_of(stage),
        record_steps=record_steps,
        sample_rate=stage.sample_rate,
        adjacency=stage.adjacency,
        sampling=stage.sampling,
        batch_size=stage.batch_size,
        canary_period=stage.canary_period,
        optimizer=stage.optimizer,
        momentum=stage.momentum,
        loss=stage.loss,
    )


def descent_of(stage: ReferenceStage) -> DPSGD:
    """The descent of a stage, on all records, neither clipped nor noisy."""
    return DPSGD(
        noise_multiplier=0.0,
        max_grad_norm=float("inf"),
        learning_rate=schedule_of(stage),
        record_steps=(stage.num_steps,),
        optimizer=stage.optimizer,
        momentum=stage.momentum,
        loss=stage.loss,
    )


def schedule_of(stage: ReferenceStage) -> Schedule:
    """The learning rate as a function of the step, 0 for the first."""
    rate, last = stage.learning_rate, stage.num_steps

    def factor(step: int) -> float:
        if stage.learning_rate_schedule is LearningRateSchedule.LINEAR:
            return 1.0 - step / last
        if stage.learning_rate_schedule is LearningRateSchedule.COSINE:
            return 0.5 * (1.0 + math.cos(math.pi * step / last))
        return 1.0

    return lambda step: rate * factor(step)
