"""The batches of a training, which are fixed before it starts."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dpcanary.checks import checked_count
from dpcanary.errors import InputError


@dataclass(frozen=True)
class Batch:
    """The records of one step.

    Attributes:
        records: indices of records that are no canaries, shape (n,).
        canaries: indices of canaries, shape (k,).
    """

    records: NDArray[np.int64]
    canaries: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.records) + len(self.canaries)


def shuffled_batches(
    *,
    num_records: int,
    inserted: NDArray[np.int64],
    batch_size: int,
    num_steps: int,
    stream: np.random.Generator,
) -> tuple[Batch, ...]:
    """Pieces of a random order of all records and the inserted canaries, drawn for every epoch.

    What is left of an epoch is not used in it, so no batch holds a record twice.

    Args:
        num_records: records that are no canaries.
        inserted: indices of the canaries that are trained on, shape (k,).
        batch_size: records and canaries of each batch.
        num_steps: batches.
        stream: draws the orders.

    Raises:
        InputError: if there are fewer records and canaries than a batch has.
    """
    checked_count("batch_size", batch_size)
    checked_count("num_steps", num_steps)
    total = num_records + len(inserted)
    if batch_size > total:
        raise InputError(
            f"batch_size {batch_size} is more than the {num_records} records and"
            f" {len(inserted)} inserted canaries together; choose a smaller one"
        )
    pieces = _pieces(total, batch_size, stream)
    return tuple(
        Batch(piece[piece < num_records], inserted[piece[piece >= num_records] - num_records])
        for piece in islice(pieces, num_steps)
    )


def _pieces(
    total: int, batch_size: int, stream: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    while True:
        order = stream.permutation(total)
        for end in range(batch_size, total + 1, batch_size):
            yield order[end - batch_size : end]
