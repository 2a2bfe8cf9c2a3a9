"""A model and datasets whose gradients are known, so that an update tells what a step has done."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# Norms of gradients at the start, in units of C: some are clipped, some are not.
LARGE, SMALL = 10.0, 0.01


class Probe(nn.Module):
    """Two linear layers side by side, whose outputs are added. All parameters are 0 at the start.

    Each record has a column of its own in both layers, so its part of an update can be read off,
    and its gradient lies in two parameters, so clipping that looks at each alone shows.
    """

    def __init__(self, num_columns: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_columns, 2, bias=False)
        self.second = nn.Linear(num_columns, 2, bias=False)
        for layer in (self.first, self.second):
            nn.init.zeros_(layer.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Logits of two classes."""
        found: Tensor = self.first(features) + self.second(features)
        return found

    @torch.no_grad()
    def moved(self) -> Tensor:
        """How far the parameters are from the start, shape (layers, classes, columns)."""
        return torch.stack([self.first.weight, self.second.weight]).double()


@dataclass(frozen=True)
class Settings:
    """What a training loop is asked to do. Its optimiser must be SGD without momentum.

    Attributes:
        sample_rate: of Poisson sampling. The expected batch size is that times the records.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        max_grad_norm: the clipping norm C.
        learning_rate: of SGD.
        num_steps: optimiser steps, not epochs.
        seed: another one for each training.
    """

    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    num_steps: int
    seed: int


def silent_records(count: int) -> TensorDataset:
    """Records whose gradients are 0: an update is noise alone. Shape (count, count)."""
    return TensorDataset(torch.zeros(count, count), torch.zeros(count, dtype=torch.int64))


def loud_records(count: int, max_grad_norm: float) -> TensorDataset:
    """Records with a column each; the gradients of even ones are clipped, of odd ones are not.

    The gradient of a record at the start is 1/2 or -1/2 times its feature, for two classes in two
    layers, so its norm is the feature.
    """
    features = torch.full((count,), LARGE * max_grad_norm)
    features[1::2] = SMALL * max_grad_norm
    return TensorDataset(torch.diag(features), torch.zeros(count, dtype=torch.int64))
