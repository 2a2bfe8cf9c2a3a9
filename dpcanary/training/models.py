"""From the names in a config to a module and a mechanism."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import vector_to_parameters

from dpcanary.core.global_generators import seed_torch
from dpcanary.core.plugins import function_named
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.initialisation import NO_RUN, redraw
from dpcanary.training.residual_networks import Residual, resnet9, wrn16_4
from dpcanary.training.training_settings import (
    Activation,
    InitialWeights,
    LearningRateSchedule,
    Loss,
    MechanismStage,
    ModelKind,
    ModelStage,
    PretrainingSettings,
    ReferenceStage,
)

_norm = partial(nn.GroupNorm, 32)  # as many groups as Opacus uses in place of batch norm


def convnet(num_classes: int = 10) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) for 3 x 32 x 32 images: 62,006 parameters with ten classes.

    The ReLU comes after the maximum, on a quarter of the values. It is the same function.
    """
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )


def _block(ins: int, outs: int, stride: int) -> nn.Module:
    """Two convolutions and a shortcut (He et al., 2016)."""
    body = (
        nn.Conv2d(ins, outs, 3, stride, padding=1, bias=False),
        _norm(outs),
        nn.ReLU(),
        nn.Conv2d(outs, outs, 3, padding=1, bias=False),
        _norm(outs),
    )
    shortcut = None
    if stride != 1 or ins != outs:
        shortcut = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), _norm(outs))
    return nn.Sequential(Residual(*body, shortcut=shortcut), nn.ReLU())


def resnet18(num_classes: int = 10) -> nn.Module:
    """ResNet-18 for 3 x 32 x 32 images: 11,173,962 parameters with ten classes.

    It has the form for CIFAR-10 (3 x 3 stem, no pooling after it), and group normalisation in
    place of batch normalisation, which would mix the records of a batch.
    """
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False), _norm(64), nn.ReLU()]
    channels_in = 64
    for channels in (64, 128, 256, 512):
        stride = channels // channels_in
        layers += [_block(channels_in, channels, stride), _block(channels, channels, stride=1)]
        channels_in = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes)]
    return nn.Sequential(*layers)


def _own_module(
    reference: str, *, seed: int, shape: tuple[int, ...], num_classes: int, loss: Loss
) -> nn.Module:
    """The checked module that a user's function `package.module:function` makes."""
    make = function_named(reference)
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)  # so that all jobs get the same module
        try:
            module = make()
        except Exception as error:  # whatever the user's code raises
            raise InputError(f"model {reference} fails: {type(error).__name__}: {error}") from error
        if not isinstance(module, nn.Module):
            raise InputError(f"model {reference} returns no torch.nn.Module but {type(module)}")
        output_shape = _output_shape(reference, module, shape)  # lazy layers draw parameters here
    num_outputs = loss.num_outputs(num_classes)
    is_binary = loss is Loss.BINARY_CROSS_ENTROPY and num_classes == 2
    if output_shape != (2, num_outputs) and not (is_binary and output_shape == (2, 1)):
        labels = f"{num_classes} classes" if loss.is_of_classes else "labels that are numbers"
        raise InputError(
            f"model {reference} maps 2 records to shape {output_shape}; for {labels} and loss"
            f" {loss} it must be (2, {num_outputs})"
        )
    return module


def _output_shape(reference: str, module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of outputs for two records of zeros, real numbers or else ids of tokens."""
    errors: list[Exception] = []
    for dtype in (torch.float32, torch.int64):
        try:
            with torch.no_grad():
                return tuple(module(torch.zeros(2, *shape, dtype=dtype)).shape)
        except Exception as error:  # whatever the user's code raises
            errors.append(error)
    raise InputError(
        f"model {reference} cannot take records of shape {shape}: {errors[0]}"
    ) from errors[0]


_ACTIVATIONS = {Activation.TANH: nn.Tanh, Activation.RELU: nn.ReLU, Activation.SIGMOID: nn.Sigmoid}
# The factor on the learning rate at a step, 0 for the first, of `total` steps.
_FACTORS: dict[LearningRateSchedule, Callable[[int, int], float]] = {
    LearningRateSchedule.CONSTANT: lambda step, total: 1.0,
    LearningRateSchedule.LINEAR: lambda step, total: 1.0 - step / total,
    LearningRateSchedule.COSINE: lambda step, total: 0.5 * (1.0 + math.cos(math.pi * step / total)),
}


def module_of(
    stage: ModelStage,
    *,
    shape: Sequence[int],
    num_classes: int,
    pretrained: NDArray[np.float32] | None = None,
) -> nn.Module:
    """The module that a stage names, for records with features of some shape.

    Its parameters are the `pretrained` ones, in the module's order. By default they are drawn by
    the stage's `model_seed`, and those of a user's own model are as its function makes them.

    Raises:
        InputError: if the features do not have the shape that the model takes, the parameters are
            not as many as the module has, or a user's own model cannot be made.
    """
    kind, shape, loss = stage.model, tuple(shape), stage.loss
    num_outputs = loss.num_outputs(num_classes)
    if isinstance(kind, ModelKind):
        _check_shape(kind, shape)
        with torch.random.fork_rng(devices=[]):  # layers draw from PyTorch's one generator
            module = _known_module(kind, stage, shape=shape, num_outputs=num_outputs)
    else:
        module = _own_module(
            kind, seed=stage.model_seed, shape=shape, num_classes=num_classes, loss=loss
        )
    if isinstance(kind, ModelKind) or stage.initial_weights:
        weights = stage.initial_weights or InitialWeights.PYTORCH
        redraw(module, seed=stage.model_seed, run=NO_RUN, weights=weights)
    if pretrained is not None:
        count = sum(parameter.numel() for parameter in module.parameters())
        if pretrained.shape != (count,):
            raise InputError(
                f"there are {pretrained.size} pretrained parameters, and the module has {count};"
                " delete their file and run again"
            )
        vector_to_parameters(torch.from_numpy(pretrained), module.parameters())
    return module


def _known_module(
    kind: ModelKind, stage: ModelStage, *, shape: tuple[int, ...], num_outputs: int
) -> nn.Module:
    match kind:
        case ModelKind.LINEAR:
            return nn.Linear(shape[0], num_outputs)
        case ModelKind.MLP:
            return _perceptron([shape[0], *stage.hidden_sizes, num_outputs], stage.activation)
        case ModelKind.CONVNET:
            return convnet(num_outputs)
        case ModelKind.RESNET18:
            return resnet18(num_outputs)
        case ModelKind.RESNET9:
            return resnet9(num_outputs, width=stage.width, logit_scale=stage.logit_scale)
        case ModelKind.WRN16_4:
            return wrn16_4(num_outputs)
        case never:
            assert_never(never)


def _check_shape(kind: ModelKind, shape: tuple[int, ...]) -> None:
    if kind in (ModelKind.LINEAR, ModelKind.MLP):
        if len(shape) != 1:
            raise InputError(
                f"model {kind} takes flat features, not of shape {shape}: for images, use model"
                " convnet (with image_size 32 in the dataset, if it is a folder of colour images),"
                " or in a config an encoder"
            )
        return
    any_size = kind in (ModelKind.RESNET18, ModelKind.WRN16_4)
    if shape != (3, 32, 32) and not (any_size and len(shape) == 3 and shape[0] == 3):
        expected = "(3, height, width)" if any_size else "(3, 32, 32)"
        remedy = "colour images in a folder are scaled by image_size 32 (the option --image-size)"
        if len(shape) == 3 and shape[0] == 1:
            remedy = "these are grey: give a model of your own, or images in colour"
        raise InputError(f"model {kind} takes images of shape {expected}, not {shape}: {remedy}")


def _perceptron(widths: Sequence[int], activation: Activation) -> nn.Module:
    layers: list[nn.Module] = []
    for ins, outs in pairwise(widths):
        layers += [nn.Linear(ins, outs), _ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def mechanism_of(
    stage: MechanismStage, *, record_steps: tuple[int, ...], noise_multiplier: float
) -> DPSGD:
    """The DP-SGD of a stage, with this noise."""
    return replace(
        descent(stage, loss=stage.loss),
        noise_multiplier=noise_multiplier,
        max_grad_norm=stage.max_grad_norm if stage.is_private else math.inf,
        record_steps=record_steps,
        sample_rate=stage.sample_rate,
        adjacency=stage.adjacency,
        sampling=stage.sampling,
        batch_size=stage.batch_size,
        canary_period=stage.canary_period,
        augmentation_multiplicity=stage.augmentation_multiplicity or 0,
    )


def descent(settings: ReferenceStage | PretrainingSettings, *, loss: Loss) -> DPSGD:
    """A training without clipping and noise."""
    factor = _FACTORS[settings.learning_rate_schedule]
    return DPSGD(
        noise_multiplier=0.0,
        max_grad_norm=math.inf,
        learning_rate=lambda step: settings.learning_rate * factor(step, settings.num_steps),
        record_steps=(settings.num_steps,),
        optimizer=settings.optimizer,
        momentum=settings.momentum,
        loss=loss,
    )
