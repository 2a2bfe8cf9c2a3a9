"""PyTorch's optimisers on a buffer of many models, which they update coordinate by coordinate."""

from typing import assert_never

import torch
from torch import Tensor

from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.options import Optimizer


def optimizer_of(dpsgd: DPSGD, parameters: Tensor, gradients: Tensor) -> torch.optim.Optimizer:
    """The optimiser of a block of runs; the caller sets its learning rate before every step.

    A step reads the gradients and changes the parameters, both of shape (runs, parameters).
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
