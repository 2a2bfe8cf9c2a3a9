"""Watched trainings of several processes."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.watching.directions import Directions, NoiseSeen

Floats = NDArray[np.float64]


class Processes:
    """The processes of a training that add up their gradients."""

    def __init__(self) -> None:
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()
        on_gpu = torch.distributed.get_backend() == "nccl"
        self._device = torch.device("cuda" if on_gpu else "cpu")

    def sum(self, values: Floats) -> Floats:
        """The sum over processes."""
        tensor = torch.from_numpy(np.asarray(values, np.float64)).to(self._device)
        torch.distributed.all_reduce(tensor)
        return tensor.cpu().numpy()

    def sums(self, *parts: Floats) -> list[Floats]:
        """The sums over processes of several arrays, which are sent together."""
        summed = self.sum(np.concatenate([part.ravel() for part in parts]))
        ends = np.cumsum([part.size for part in parts])[:-1]
        sums = zip(parts, np.split(summed, ends), strict=True)
        return [own.reshape(part.shape) for part, own in sums]

    def shared(self, value: Any) -> Any:
        """The first process's value."""
        values = [value]
        torch.distributed.broadcast_object_list(values, device=self._device)
        return values[0]


class ShardedDirections(Directions):
    """Directions in parameters of which each process has a part.

    A direction is made of one in each part, weighted by the square root of the part's share of all
    parameters. All processes must make the same calls; each gets the same numbers.
    """

    def __init__(
        self,
        processes: Processes,
        parts: Sequence[int],
        sizes: Sequence[int],
        *,
        num_slots: int,
        seed: int,
    ) -> None:
        """Draws the directions; `parts` are the sizes of this process's parts of the tensors."""
        super().__init__(parts, num_slots=num_slots, seed=seed + processes.rank)
        self._processes = processes
        self._weight = sqrt(sum(parts) / sum(sizes))
        counts = np.zeros(processes.size)
        counts[processes.rank] = len(self.sampled)
        self._num_sampled = processes.sum(counts).astype(int)
        self._most_values = int(
            max(processes.sum(np.eye(processes.size)[processes.rank] * self._num_values))
        )

    def names_of_sampled(self, names: Sequence[str]) -> list[str]:
        """The names of the tensors `sampled` in all processes."""
        sampled = np.zeros((len(self._num_sampled), max(self._num_sampled)))
        sampled[self._processes.rank, : len(self.sampled)] = self.sampled
        positions = self._processes.sum(sampled.ravel()).reshape(sampled.shape).astype(int)
        return [
            f"{names[place]} in process {rank}"
            for rank, count in enumerate(self._num_sampled)
            for place in positions[rank, :count]
        ]

    def project(self, tensors: Sequence[Tensor]) -> Floats:
        """The components of a vector in the directions, shape (K,)."""
        return self._processes.sum(self._weight * super().project(tensors))

    def add(self, tensors: Sequence[Tensor], amounts: Floats) -> None:
        """Adds this process's part of the sum of amounts times directions, in place."""
        super().add(tensors, self._weight * amounts)

    def noise(
        self, noisy: Sequence[Tensor], sums: Sequence[Tensor], *, scale: float = 1.0
    ) -> NoiseSeen:
        """Looks at the noise of all processes; see `NoiseSeen`."""
        seen = super().noise(noisy, sums, scale=scale)
        first = np.zeros((sum(self._num_sampled), self._most_values))
        start = int(self._num_sampled[: self._processes.rank].sum())
        rows = slice(start, start + len(self.sampled))
        first[rows] = np.nan
        first[rows, : seen.first.shape[1]] = seen.first
        along = self._weight * seen.projections
        return NoiseSeen(
            *self._processes.sums(along, seen.squares, seen.sums, first, seen.with_sum)
        )
