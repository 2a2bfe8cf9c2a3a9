"""Which pairs of datasets count as neighbours, and so what an epsilon protects."""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError, suggestion


class Adjacency(StrEnum):
    """A neighbouring relation on datasets.

    Attributes:
        ADD_REMOVE: the target record is present or absent; protects membership.
        ZERO_OUT: the target record is replaced by a null record of zero gradient; protects
            membership with the dataset's size known. For DP-SGD it has the values of ADD_REMOVE.
        SUBSTITUTE: the target record is replaced by any other; protects its content, so
            attributes and labels of a record that is known to be in the data.
    """

    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    SUBSTITUTE = "substitute"

    @classmethod
    def _missing_(cls, value: object) -> "Adjacency":
        raise InputError(f"unknown adjacency {value!r}: {suggestion(str(value), cls)}")

    @property
    def sensitivity(self) -> float:
        """Largest change of a clipped gradient sum between neighbours, in units of the norm C."""
        return 2.0 if self is Adjacency.SUBSTITUTE else 1.0


def world_of(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """World of each run: 0 trains on D, 1 on its neighbour D'.

    Runs alternate, so that every even number of consecutive runs is balanced. Under `substitute`,
    D holds the target record and D' the canary in its place; under `add_remove`, D' lacks the
    target; under `zero_out`, D' holds a null record in its place.

    Example:
        >>> world_of(np.arange(4)).tolist()
        [0, 1, 0, 1]
    """
    return runs % 2
