"""From the names in a config to a module and a mechanism."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import assert_never

import torch
from torch import nn

from dpcanary.errors import InputError
from dpcanary.training.architectures import convnet, resnet18
from dpcanary.training.dpsgd import DPSGD, Schedule
from dpcanary.training.initialisation import NO_RUN, redraw
from dpcanary.training.mechanism_stage import MechanismStage, ReferenceStage
from dpcanary.training.options import Activation, LearningRateSchedule, ModelKind

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
    match stage.model:
        case ModelKind.LINEAR:
            return nn.Linear(_num_features(stage, shape), num_classes)
        case ModelKind.MLP:
            return _perceptron(
                [_num_features(stage, shape), *stage.hidden_sizes, num_classes], stage.activation
            )
        case ModelKind.CONVNET:
            _check_images(stage, shape, fits=shape == (3, 32, 32), takes="(3, 32, 32)")
            return convnet(num_classes)
        case ModelKind.RESNET18:
            _check_images(
                stage, shape, fits=len(shape) == 3 and shape[0] == 3, takes="(3, height, width)"
            )
            return resnet18(num_classes)
        case never:
            assert_never(never)


def _num_features(stage: ReferenceStage, shape: tuple[int, ...]) -> int:
    if len(shape) != 1:
        raise InputError(f"model {stage.model} takes flat features, not of shape {shape}")
    return shape[0]


def _check_images(stage: ReferenceStage, shape: tuple[int, ...], *, fits: bool, takes: str) -> None:
    if not fits:
        raise InputError(f"model {stage.model} takes images of shape {takes}, not {shape}")


def _perceptron(widths: Sequence[int], activation: Activation | None) -> nn.Module:
    if activation is None:
        raise InputError("model mlp needs an activation")
    layers: list[nn.Module] = []
    for ins, outs in pairwise(widths):
        layers += [nn.Linear(ins, outs), _ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


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
        momentum=stage.momentum or 0.0,
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
        momentum=stage.momentum or 0.0,
        loss=stage.loss,
    )


def schedule_of(stage: ReferenceStage) -> Schedule:
    """The learning rate as a function of the step, 0 for the first."""
    rate, last = stage.learning_rate, stage.num_steps

    def factor(step: int) -> float:
        match stage.learning_rate_schedule:
            case LearningRateSchedule.CONSTANT:
                return 1.0
            case LearningRateSchedule.LINEAR:
                return 1.0 - step / last
            case LearningRateSchedule.COSINE:
                return 0.5 * (1.0 + math.cos(math.pi * step / last))
            case never:
                assert_never(never)

    return lambda step: rate * factor(step)
