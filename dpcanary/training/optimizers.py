"""PyTorch's optimisers on a buffer of many models: what they do is by coordinate."""

import torch
from torch import Tensor

from dpcanary.training.inputs import DPSGD
from dpcanary.vocabulary import Optimizer


def optimizer_of(dpsgd: DPSGD, parameters: Tensor, gradients: Tensor) -> torch.optim.Optimizer:
    """The optimiser of a block of runs; its learning rate is set at every step.

    Args:
        dpsgd: says which one.
        parameters: shape (runs, parameters), changed by each step.
        gradients: shape (runs, parameters), read by each step.
    """
    parameters.grad = gradients
    if dpsgd.optimizer is Optimizer.ADAM:
        return torch.optim.Adam([parameters], fused=True)
    momentum = dpsgd.momentum if dpsgd.optimizer is Optimizer.MOMENTUM else 0.0
    return torch.optim.SGD([parameters], momentum=momentum, fused=True)


def state_tensors(optimizer: Optimizer) -> int:
    """Tensors of the parameters' size that an optimiser keeps."""
    return {Optimizer.SGD: 0, Optimizer.MOMENTUM: 1, Optimizer.ADAM: 2}[optimizer]
