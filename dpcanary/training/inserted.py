"""Gradient canaries of a block of runs: what they add to sums, and what is observed of them."""

import numpy as np
import torch
from torch import Tensor

from dpcanary.canaries import DirectionCanary, GradientCanary
from dpcanary.training.gradients.gradient_path import GradientPath
from dpcanary.training.slots import Slots

# Below it, a gradient has no direction.
_SHORTEST = 1e-30


class InsertedGradients:
    """Gradient canaries in the layout of a path's buffers.

    A canary in one coordinate is one column of the buffer, unless the path spreads parameters
    over several columns. Any other canary is a row of numbers.
    """

    def __init__(
        self, slots: Slots, path: GradientPath, *, max_grad_norm: float, signs: Tensor
    ) -> None:
        """Encodes the gradients.

        Args:
            slots: with gradient canaries.
            path: computes the gradients of records.
            max_grad_norm: C, the length of canaries in one coordinate.
            signs: the factor on each slot's gradient in each run, shape (runs, slots).
        """
        self._signs, self._norm = signs, max_grad_norm
        self._columns = _columns(slots, path, signs.device)
        if self._columns is None:
            encoded = torch.cat(
                [_encoded(slots, k, path, max_grad_norm, signs.device) for k in range(len(slots))]
            )
            touched = encoded.any(dim=0).nonzero()
            first, last = (int(touched.min()), int(touched.max()) + 1) if len(touched) else (0, 1)
            self._span = slice(first, last)
            self._gradients = encoded[:, self._span].contiguous()
            lengths = torch.stack([torch.linalg.vector_norm(row) for row in self._gradients])
            self._directions = self._gradients / lengths.clamp_min(_SHORTEST).unsqueeze(1)

    def add(self, sums: Tensor, inserted: Tensor) -> None:
        """Adds the gradients to the sums of the runs where they come in.

        Args:
            sums: shape (runs, columns of the buffer).
            inserted: 1 where the slot's place is in the batch, else 0; shape (runs, slots).
        """
        factors = self._signs * inserted
        if self._columns is not None:
            places = self._columns.expand(len(sums), -1)
            sums.scatter_add_(1, places, factors * self._norm)
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


def _columns(slots: Slots, path: GradientPath, device: torch.device) -> Tensor | None:
    """The columns of canaries in one coordinate, shape (slots,), where they have columns."""
    coordinates = [
        canary.coordinate for canary in slots.canaries if isinstance(canary, GradientCanary)
    ]
    if len(coordinates) < len(slots):
        return None
    return path.columns_of(torch.tensor(coordinates, device=device))


def _encoded(
    slots: Slots, slot: int, path: GradientPath, max_grad_norm: float, device: torch.device
) -> Tensor:
    """The gradient of one slot as a row of a buffer, shape (1, columns)."""
    canary = slots.canaries[slot]
    if isinstance(canary, DirectionCanary):
        gradient = torch.from_numpy(np.asarray(canary.gradient, np.float32)).to(device)
    else:
        assert isinstance(canary, GradientCanary)
        gradient = torch.zeros(_num_parameters(path), device=device)
        gradient[canary.coordinate] = max_grad_norm
    return path.encode(gradient.unsqueeze(0))


def _num_parameters(path: GradientPath) -> int:
    """Parameters of the module, without what pads a buffer."""
    return path.decode(torch.zeros(1, path.num_parameters, device=path.table.labels.device)).shape[
        1
    ]
