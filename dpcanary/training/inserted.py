"""Gradient canaries of a block of runs: what they add to sums, and what is observed of them."""

import numpy as np
import torch
from torch import Tensor

from dpcanary.canaries import Canary, DirectionCanary, GradientCanary
from dpcanary.training.gradients.gradient_path import GradientPath
from dpcanary.training.slots import Slots

# A gradient shorter than this has no direction.
_SHORTEST = 1e-30


class InsertedGradients:
    """Gradient canaries in the layout of a path's buffers.

    A canary in one coordinate is one column of the buffer, unless the path spreads a parameter
    over several columns. Any other canary is a row of numbers.

    Args:
        slots: with gradient canaries.
        path: computes the gradients of records.
        max_grad_norm: C, the length of canaries in one coordinate.
        signs: the factor on each slot's gradient in each run, shape (runs, slots).
    """

    def __init__(
        self, slots: Slots, path: GradientPath, *, max_grad_norm: float, signs: Tensor
    ) -> None:
        self._signs, self._norm, self._columns = signs, max_grad_norm, None
        found = [c.coordinate for c in slots.canaries if isinstance(c, GradientCanary)]
        if found:
            self._columns = path.columns_of(torch.tensor(found, device=signs.device))
        if self._columns is None:
            encoded = torch.cat([self._encoded(canary, path) for canary in slots.canaries])
            touched = encoded.any(dim=0).nonzero()
            first, last = (int(touched.min()), int(touched.max()) + 1) if len(touched) else (0, 1)
            self._span = slice(first, last)
            self._gradients = encoded[:, self._span].contiguous()
            lengths = torch.stack([torch.linalg.vector_norm(row) for row in self._gradients])
            self._directions = self._gradients / lengths.clamp_min(_SHORTEST).unsqueeze(1)

    def add(self, sums: Tensor, inserted: Tensor) -> None:
        """Adds the gradients to the sums of the runs whose batches they are in.

        Args:
            sums: shape (runs, columns of the buffer).
            inserted: 1 where the slot's place is in the batch, else 0; shape (runs, slots).
        """
        factors = self._signs * inserted
        if self._columns is not None:
            sums.scatter_add_(1, self._columns.expand(len(sums), -1), factors * self._norm)
        else:
            sums[:, self._span].addmm_(factors, self._gradients)

    def along(self, parameters: Tensor) -> Tensor:
        """The parameters along each slot's gradient, shape (runs, slots).

        Args:
            parameters: shape (runs, columns of the buffer).
        """
        if self._columns is not None:
            return parameters[:, self._columns]
        return parameters[:, self._span] @ self._directions.T

    def _encoded(self, canary: Canary, path: GradientPath) -> Tensor:
        """The gradient of a canary as a row of a buffer, shape (1, columns)."""
        device = self._signs.device
        if isinstance(canary, DirectionCanary):
            gradient = torch.from_numpy(np.asarray(canary.gradient, np.float32))[None].to(device)
        else:
            assert isinstance(canary, GradientCanary)
            gradient = path.decode(torch.zeros(1, path.num_parameters, device=device))
            gradient[0, canary.coordinate] = self._norm
        return path.encode(gradient)
