"""A model and datasets whose gradients are known, so that an update tells what a step has done."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# Norms of gradients at the start, in units of C. Small ones show how sums are divided. The others
# show clipping: it must not act on those below 1, and must bring all others to 1.
SMALL = 0.01
NORMS = (0.5, 0.9, 1.1, 1.5, 2.0, 5.0, 10.0, 30.0, 100.0)
# Gradients up to this norm change so little in one step that the second one clips them too.
STABLE = 10.0
# Of `Probe`: tensors, each of which holds the same share of every record's gradient, and the values
# of a record in all of them.
NUM_TENSORS, PARAMETERS_OF_RECORD = 5, 8


class Probe(nn.Module):
    """Logits of two classes, from five parameter tensors that are 0 at the start.

    Each record has columns or rows of its own in all of them, so its part in the update of each
    can be read off: what is left out of clipping or noise shows, also if it is a bias.

    Args:
        num_records: of the dataset. Record i is a vector of which component i alone is not 0.
    """

    def __init__(self, num_records: int) -> None:
        super().__init__()
        # Two tensors of one shape, which could get the same noise.
        self.first = nn.Linear(num_records, 2, bias=False)
        self.second = nn.Linear(num_records, 2, bias=False)
        self.embedding = nn.Embedding(num_records, 2)
        # A bias for each record: one for all would show neither whose part it holds nor, having few
        # values, whether its noise is right.
        self.hidden = nn.Linear(1, num_records)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """Logits, shape (records, 2), of features of shape (records, num_records)."""
        size = features.sum(dim=1, keepdim=True)
        # A sequence of one word: some libraries take embeddings of sequences alone.
        embedded = size * self.embedding(features.argmax(dim=1, keepdim=True)).squeeze(1)
        units = self.hidden(torch.ones_like(size))  # the same for all, before each takes its own
        own = (units * features).sum(dim=1, keepdim=True)
        # So that a unit's gradient is as large as that of two logits.
        opposite = torch.cat([own, -own], dim=1) / sqrt(2)
        logits: Tensor = self.first(features) + self.second(features) + embedded + opposite
        return logits

    def moved(self) -> dict[str, NDArray[np.float64]]:
        """How far the parameters are from the start, by name."""
        return {
            name: parameter.detach().cpu().double().numpy()
            for name, parameter in self.named_parameters()
        }


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


def norms_of(count: int) -> NDArray[np.float64]:
    """Norms of the loud records' gradients, over C; every other one is small. Shape (count,)."""
    norms = np.full(count, SMALL)
    norms[0::2] = np.resize(NORMS, count // 2)
    return norms


def silent_records(count: int) -> TensorDataset:
    """Records whose gradients are 0: an update is noise alone. Shape (count, count)."""
    return TensorDataset(torch.zeros(count, count), torch.zeros(count, dtype=torch.int64))


def loud_records(count: int, max_grad_norm: float) -> TensorDataset:
    """Records of a component each, whose gradients have the norms of `norms_of` at the start.

    The gradient in each logit is 1/2 or -1/2 at the start. Times a feature x, the gradient in each
    of the five tensors has the norm x / sqrt(2).
    """
    features = norms_of(count) * max_grad_norm * sqrt(2 / NUM_TENSORS)
    return TensorDataset(
        torch.diag(torch.tensor(features, dtype=torch.float32)),
        torch.zeros(count, dtype=torch.int64),
    )
