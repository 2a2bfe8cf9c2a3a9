"""PyTorch's optimisers on a buffer of many models: what they do is by coordinate."""

from typing import assert_never

import torch
from torch import Tensor

from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.options import Optimizer


def optimizer_of(dpsgd: DPSGD, parameters: Tensor, gradients: Tensor) -> torch.optim.Optimizer:
    """The optimiser of a block of runs; its learning rate is set at every step.

    Args:
        dpsgd: says which one.
        parameters: shape (runs, parameters), changed by each step.
        gradients: shape (runs, parameters), read by each step.
    """
    parameters.grad = gradients
    match dpsgd.optimizer:
        case Optimizer.SGD:
            return torch.optim.SGD([parameters], fused=True)
        case Optimizer.MOMENTUM:
            return torch.optim.SGD([parameters], momentum=dpsgd.momentum, fused=True)
        case Optimizer.ADAM:
            return torch.optim.Adam([parameters], fused=True)
        case never:
            assert_never(never)


def state_tensors(optimizer: Optimizer) -> int:
    """Tensors of the parameters' size that an optimiser keeps."""
    return {Optimizer.SGD: 0, Optimizer.MOMENTUM: 1, Optimizer.ADAM: 2}[optimizer]
