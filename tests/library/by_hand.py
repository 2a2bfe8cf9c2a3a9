"""What tests compare gradients and trainings with: one record at a time, by autograd."""

import copy
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpcanary.records import Records

Floats = NDArray[np.float64]


def start_of(module: nn.Module) -> Floats:
    """The module's parameters in its order, in double precision."""
    return parameters_to_vector(module.parameters()).detach().double().numpy()


def record_gradient(module: nn.Module, weights: Floats, features: NDArray, label: int) -> Floats:
    """Gradient of one record's cross-entropy in all parameters, in the module's order."""
    twin = copy.deepcopy(module).double()
    vector_to_parameters(torch.from_numpy(weights).double(), twin.parameters())
    inputs = torch.from_numpy(features)[None]
    outputs = twin(inputs.double() if inputs.is_floating_point() else inputs)
    nn.functional.cross_entropy(outputs, torch.tensor([label])).backward()
    return parameters_to_vector(part.grad for part in twin.parameters()).numpy()


def gradients_of(module: nn.Module, weights: Floats, records: Records) -> list[Floats]:
    """The gradient of each record."""
    pairs = zip(records.features, records.labels, strict=True)
    return [record_gradient(module, weights, features, int(label)) for features, label in pairs]


def clipped_sum(
    module: nn.Module, weights: Floats, records: Records, clip: float = math.inf
) -> Floats:
    """Sum of the clipped gradients of some records."""
    total = np.zeros_like(weights)
    for gradient in gradients_of(module, weights, records):
        total += gradient * min(1.0, clip / np.linalg.norm(gradient))
    return total


def cosine(one: Floats, other: Floats) -> float:
    """The cosine of the angle between two vectors."""
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
