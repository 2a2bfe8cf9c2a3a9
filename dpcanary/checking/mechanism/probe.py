"""The small model that a loop trains, whose gradients are known, and its records."""

from dataclasses import dataclass, replace
from math import sqrt
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpcanary.checking.mechanism.trace import Trace

Array = NDArray[np.float64]

# Norms of gradients at the start, over C. Those below 1 must stay, the others must become 1. As the
# parameters move, gradients shrink: so all norms in between occur as well.
NORMS = (0.02, 0.1, 0.3, 0.6, 0.8, 0.9, 0.97, 1.03, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0, 10.0)
LOUD_NORMS = (20.0, 30.0, 60.0, 100.0)
# Every so many records have the label 1: a loop that balances classes then has two sample rates.
_PERIOD_OF_LABELS = 4
# Columns of the parameters in which no record has a gradient.
NUM_SILENT = 48
# The parameters of some columns start so many of the largest steps away from 0.
_FAR = 50.0
# A record's logits start at most so far apart, and move at most so far by one clipped gradient.
_MARGIN, MOST_MOVED = 4.0, 3.0


class ProbedTensor(NamedTuple):
    """A parameter tensor of the probe: its name, shape for n columns, and values in a column."""

    name: str
    shape: tuple[int, ...]
    axis: int
    values: tuple[int, ...]


# -1 stands for the number of columns. A column has eight values in all.
TENSORS = (
    ProbedTensor("first.weight", (2, -1), 1, (0, 1)),
    ProbedTensor("second.weight", (2, -1), 1, (2, 3)),
    ProbedTensor("embedding.weight", (-1, 2), 0, (4, 5)),
    ProbedTensor("hidden.weight", (-1, 1), 0, (6,)),
    ProbedTensor("hidden.bias", (-1,), 0, (7,)),
)
VALUES_OF_COLUMN = 8


def by_column(states: Array, num_columns: int) -> Array:
    """Flat parameters, shape (..., parameters), as (..., 8, columns)."""
    columns, start = np.empty((*states.shape[:-1], VALUES_OF_COLUMN, num_columns)), 0
    for tensor in TENSORS:
        count = len(tensor.values) * num_columns
        own = states[..., start : start + count]
        shape = [num_columns if size == -1 else size for size in tensor.shape]
        rows = np.moveaxis(
            own.reshape(*states.shape[:-1], *shape), states.ndim - 1 + tensor.axis, -1
        )
        columns[..., list(tensor.values), :] = rows.reshape(
            *states.shape[:-1], len(tensor.values), num_columns
        )
        start += count
    return columns


class Probe(nn.Module):
    """Logits of two classes, from five parameter tensors.

    Record i is a vector of which component i alone is not 0. It has a column of its own in all
    tensors, so its part in the update of each can be read off: what is left out of clipping or
    noise shows, also if it is a bias. In further columns no record has a gradient. Each forward
    pass shows the `Trace` where the parameters are.
    """

    def __init__(self, records: "ProbeRecords", trace: Trace) -> None:
        super().__init__()
        columns = records.num_columns
        # Two tensors of one shape, which could get the same noise.
        self.first = nn.Linear(columns, 2, bias=False)
        self.second = nn.Linear(columns, 2, bias=False)
        self.embedding = nn.Embedding(columns, 2)
        # A bias for each record: one for all would show neither whose part it holds nor, having few
        # values, whether its noise is right.
        self.hidden = nn.Linear(1, columns)
        self.trace = trace
        for tensor, start in zip(TENSORS, records.start_tensors(), strict=True):
            with torch.no_grad():
                self.get_parameter(tensor.name).copy_(torch.from_numpy(start))

    def forward(self, features: Tensor) -> Tensor:
        """Logits, shape (records, 2), of features of shape (records, columns)."""
        # As they are in this call: libraries replace them.
        self.trace.saw(
            [attrgetter(tensor.name)(self) for tensor in TENSORS],
            in_training=self.training and torch.is_grad_enabled(),
        )
        size = features.square().sum(dim=1, keepdim=True).sqrt()
        # A sequence of one word: some libraries take embeddings of sequences alone.
        embedded = size * self.embedding(features.argmax(dim=1, keepdim=True)).squeeze(1)
        units = self.hidden(torch.ones_like(size))  # the same for all, before each takes its own
        own = (units * features).sum(dim=1, keepdim=True)
        # So that a unit's gradient is as large as that of two logits.
        opposite = torch.cat([own, -own], dim=1) / sqrt(2)
        logits: Tensor = self.first(features) + self.second(features) + embedded + opposite
        return logits


@dataclass(frozen=True)
class ProbeRecords:
    """Records of one component each, and where the probe's parameters start.

    Attributes:
        sizes: of the records' components, shape (N,).
        labels: 0 or 1, shape (N,).
        classes: index of each record's norm at the start, shape (N,).
        norms: the norms at the start by class, over C.
        start: parameters by column, shape (8, N + silent).
        max_grad_norm: C.
        step: how far a gradient of norm C moves the parameters.
        width: columns of each record. With one, its gradient has eight values that are not 0.
    """

    sizes: Array
    labels: NDArray[np.int64]
    classes: NDArray[np.int64]
    norms: Array
    start: Array
    max_grad_norm: float
    step: float
    width: int = 1

    @property
    def num_columns(self) -> int:
        """Columns of the parameters."""
        return int(self.start.shape[1])

    @property
    def signs(self) -> Array:
        """1 for label 0, -1 for label 1; shape (N,)."""
        return 1.0 - 2.0 * self.labels.astype(np.float64)

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The records as vectors, shape (N, columns), and labels, shape (N,)."""
        features = np.zeros((len(self.sizes), self.num_columns), dtype=np.float32)
        rows = np.repeat(np.arange(len(self.sizes)), self.width)
        features[rows, np.arange(len(rows))] = self.sizes[rows] / sqrt(self.width)
        return features, self.labels

    def dataset(self) -> TensorDataset:
        """The records as a dataset of PyTorch."""
        return TensorDataset(*(torch.from_numpy(values) for values in self.arrays()))

    def start_tensors(self) -> list[NDArray[np.float32]]:
        """Where the parameters start, in the shapes and the order of `TENSORS`."""
        tensors = []
        for tensor in TENSORS:
            own = np.moveaxis(self.start[list(tensor.values)], -1, tensor.axis)
            shape = [self.num_columns if size == -1 else size for size in tensor.shape]
            tensors.append(own.reshape(shape).astype(np.float32))
        return tensors

    def norms_at(self, columns: Array) -> Array:
        """Norms of the records' gradients over C, shape (..., N), at parameters (..., 8, columns).

        With the logits' difference d, label sign s and p = sigmoid(-s d), the gradient has the norm
        x p sqrt(2) in each of the five tensors.
        """
        shape = (*columns.shape[:-1], len(self.sizes), self.width)
        of_records = columns[..., : len(self.sizes) * self.width].reshape(shape)
        own = of_records.sum(axis=-1) / sqrt(self.width)
        if self.width > 1:  # of an embedding, a record takes the row of its first component
            own[..., 4:6, :] = of_records[..., 4:6, :, 0]
        difference = self.sizes * (
            own[..., 0, :] - own[..., 1, :] + own[..., 2, :] - own[..., 3, :]
            + own[..., 4, :] - own[..., 5, :] + sqrt(2) * (own[..., 6, :] + own[..., 7, :])
        )  # fmt: skip
        wrong = 1 / (1 + np.exp(np.clip(self.signs * difference, -60.0, 60.0)))
        norms: Array = sqrt(10) * self.sizes * wrong / self.max_grad_norm
        return norms

    def parts(self, moved: Array) -> tuple[Array, Array]:
        """What moved (..., 8, columns) along each record's gradient, and across it.

        Returns:
            Parts in the direction that lowers the record's loss, by tensor, shape (..., 5, N);
            and the four values of its column that no gradient of it moves, shape (..., 4, N).
        """
        own = moved[..., : len(self.sizes)]
        pairs = [(0, 1), (2, 3), (4, 5)]
        along = [(own[..., a, :] - own[..., b, :]) / sqrt(2) for a, b in pairs]
        along += [own[..., 6, :], own[..., 7, :]]
        across = [(own[..., a, :] + own[..., b, :]) / sqrt(2) for a, b in pairs]
        across.append((own[..., 6, :] - own[..., 7, :]) / sqrt(2))
        return self.signs * np.stack(along, axis=-2), np.stack(across, axis=-2)


def dense_records(
    *, num_records: int, width: int, max_grad_norm: float, step: float
) -> ProbeRecords:
    """Records of many components each, so that their gradients have many values of one size.

    Where a record has one component, its gradient has eight values, so clipping by coordinate or by
    row leaves it short. Here it is as long as that of a larger model.
    """
    own = probe_records(num_records=num_records, max_grad_norm=max_grad_norm, step=step)
    start = np.zeros((VALUES_OF_COLUMN, num_records * width + NUM_SILENT))
    columns = np.repeat(own.start[:, :num_records], width, axis=1) / sqrt(width)
    # A record takes the embedding of its first component alone.
    columns[4:6] = 0.0
    columns[4:6, ::width] = own.start[4:6, :num_records]
    start[:, : num_records * width] = columns
    return replace(own, start=start.astype(np.float32).astype(np.float64), width=width)


def probe_records(*, num_records: int, max_grad_norm: float, step: float) -> ProbeRecords:
    """Records with gradients of all `NORMS`.

    Args:
        num_records: N.
        max_grad_norm: C.
        step: how far a gradient of norm C moves the parameters: learning rate * C / batch size.
            Records are left out whose logits it would move by more than `MOST_MOVED`.
    """
    # A clipped gradient of a record of norm n moves its logits apart by 2 n C times the step.
    loud = [norm for norm in LOUD_NORMS if 2 * norm * max_grad_norm * step <= MOST_MOVED]
    norms = np.array([*NORMS, *loud])
    classes = np.arange(num_records) % len(norms)
    labels = (np.arange(num_records) // len(norms) % _PERIOD_OF_LABELS == 0).astype(np.int64)
    clipped_norms = norms[classes] * max_grad_norm
    # From 1/2 on, records start on the wrong side, far from 0: x p sqrt(10) = norm * C.
    far = np.where(norms[classes] >= 0.5, _FAR * step, 0.0)
    sizes = clipped_norms * 2 / sqrt(10)
    for _ in range(50):  # the margin depends on the size, and the size on the margin
        margins = np.minimum(_MARGIN, sqrt(10) * sizes * far)
        sizes = clipped_norms * (1 + np.exp(-margins)) / sqrt(10)
    far = np.divide(margins, sqrt(10) * sizes)
    signs = 1.0 - 2.0 * labels
    start = np.zeros((VALUES_OF_COLUMN, num_records + NUM_SILENT))
    pattern = np.array([1, -1, 1, -1, 1, -1, sqrt(2), sqrt(2)]) / sqrt(10)
    start[:, :num_records] = -np.outer(pattern, signs * far)
    start[:, num_records + NUM_SILENT // 2 :] = (
        _FAR * step * np.where(np.arange(8) % 2, 1, -1)[:, None]
    )
    start = start.astype(np.float32).astype(np.float64)
    sizes = sizes.astype(np.float32).astype(np.float64)
    return ProbeRecords(sizes, labels, classes, norms, start, max_grad_norm, step)
