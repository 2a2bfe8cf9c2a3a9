"""Clipped sums of small convolutional networks against automatic differentiation in float64."""

import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcanary.canaries import GradientCanary, InputCanary
from dpcanary.records import Records
from dpcanary.training.architectures import convnet, resnet18
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.errors import InputError
from dpcanary.training.gradients.choose import path_of
from dpcanary.training.gradients.convolution_stages import split_module
from dpcanary.training.gradients.convolutional import ConvolutionalPath
from dpcanary.training.gradients.gradient_path import Batch, RecordTable
from dpcanary.training.losses import record_losses
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.options import Loss, Precision, Sampling

NUM_RECORDS, NUM_CLASSES = 14, 3
Conv, Pool, ReLU, Flat, Linear = nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Linear

ACCEPTED: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, int, int]]] = {
    "convnet": (convnet, (3, 32, 32)),
    "relu first": (
        lambda: nn.Sequential(Conv(2, 4, 3), ReLU(), Pool(2), Flat(), Linear(36, NUM_CLASSES)),
        (2, 8, 8),
    ),
    "no relu": (
        lambda: nn.Sequential(Conv(1, 7, 2), Pool(2), Flat(), Linear(63, NUM_CLASSES)),
        (1, 7, 7),
    ),
    "uneven": (  # kernel, padding, window and image differ by dimension; rows are left over
        lambda: nn.Sequential(
            Conv(3, 7, (3, 4), padding=(1, 2)),
            Pool((3, 2), (2, 3)),
            ReLU(),
            Conv(7, 13, (2, 1), padding=(0, 1)),
            Pool((1, 2), (2, 2)),
            Flat(),
            Linear(13 * 3 * 4, 5),
            nn.Tanh(),
            Linear(5, NUM_CLASSES),
        ),
        (3, 13, 17),
    ),
    "overlapping windows": (
        lambda: nn.Sequential(Conv(2, 3, 3), Pool(3, 2), ReLU(), Flat(), Linear(27, NUM_CLASSES)),
        (2, 9, 9),
    ),
    "wide rows": (
        lambda: nn.Sequential(
            Conv(5, 6, 5), Pool(2), ReLU(), Flat(), Linear(6 * 18, 4), nn.Sigmoid(), Linear(4, 3)
        ),
        (5, 6, 41),
    ),
    "as large as the image": (
        lambda: nn.Sequential(Conv(2, 3, 4, padding=1), Pool(3), ReLU(), Flat(), Linear(3, 3)),
        (2, 4, 4),
    ),
}


def case(name: str, *, num_records: int = NUM_RECORDS) -> tuple[nn.Sequential, RecordTable]:
    torch.manual_seed(sum(map(ord, name)))
    make, shape = ACCEPTED[name]
    features = torch.randn(num_records, *shape)
    features[3] = 0.0  # all windows have ties
    features[5] = features[5].round()  # some have
    labels = torch.randint(0, NUM_CLASSES, (num_records,))
    return make(), RecordTable(features, labels, num_canaries=1)


def parameters_of(module: nn.Module, runs: int) -> Tensor:
    own = nn.utils.parameters_to_vector(module.parameters()).detach()
    return own + 0.1 * torch.randn(runs, len(own))


def gradients(
    module: nn.Module, row: Tensor, features: Tensor, labels: Tensor, loss: Loss
) -> Tensor:
    """Of single records, in float64."""
    module = copy.deepcopy(module).double()
    nn.utils.vector_to_parameters(row.double(), module.parameters())
    found = []
    for x, y in zip(features.double().split(1), labels.split(1), strict=True):
        value = record_losses(module(x), y, loss).sum()
        parts = torch.autograd.grad(value, list(module.parameters()))
        found.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(found)


def clipped(per_record: Tensor, weights: Tensor, max_grad_norm: float) -> Tensor:
    norms = per_record.norm(dim=1).clamp(min=1e-30)
    return (weights.double() * (max_grad_norm / norms).clamp(max=1.0)) @ per_record


def of_module(module: nn.Module, table: RecordTable, loss: Loss = Loss.CROSS_ENTROPY):
    """The path that training takes."""
    dpsgd = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, record_steps=(1,))
    dpsgd = dpsgd if loss is Loss.CROSS_ENTROPY else dataclass_with(dpsgd, loss)
    return path_of(module, table, dpsgd=dpsgd, precision=Precision.FLOAT32, basis=None)
