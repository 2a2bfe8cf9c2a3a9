"""Batches of one size that every run shares and that the adversary knows."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.randomness import generator
from dpcanary.training.purposes import Purpose

# A function of the step that gives the rows of a batch, and weights, shape (models, rows).
Batches = Callable[[int], tuple[NDArray[np.int64], NDArray[np.float32]]]


class KnownBatches:
    """Pieces of a random order of the records, which is drawn anew for every epoch."""

    def __init__(
        self,
        records: NDArray[np.int64],
        *,
        batch_size: int,
        seed: int,
        purpose: Purpose = Purpose.FIXED_BATCHES,
    ) -> None:
        """Takes what the batches are made of.

        Args:
            records: indices of the records, ascending.
            batch_size: records of each batch; what is left of an epoch is not used in it.
            seed: the audit's seed.
            purpose: of the random stream.

        Raises:
            InputError: if there are fewer records than a batch has.
        """
        if batch_size > len(records):
            raise InputError(f"batch_size {batch_size} is more than the {len(records)} records")
        self._records, self._size = records, batch_size
        self._seed, self._purpose = seed, purpose
        self._per_epoch = len(records) // batch_size
        self._epoch, self._order = -1, records

    def at(self, step: int) -> NDArray[np.int64]:
        """The records of a step's batch (0 for the first), shape (batch_size,)."""
        epoch, piece = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            stream = generator(seed=self._seed, purpose=self._purpose, index=epoch)
            self._epoch, self._order = epoch, stream.permutation(self._records)
        return self._order[piece * self._size : (piece + 1) * self._size]


def weighted_batches(
    records: NDArray[np.int64], *, batch_size: int, seed: int, count: int
) -> Batches:
    """Known batches in which every record has a weight of 1 in each of `count` models.

    The others are the arguments of `KnownBatches`.
    """
    known = KnownBatches(records, batch_size=batch_size, seed=seed)
    ones = np.ones((count, batch_size), np.float32)
    return lambda step: (known.at(step), ones)
