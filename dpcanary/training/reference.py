"""The reference model, which is trained without privacy, and its file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays


@dataclass(frozen=True)
class Reference:
    """The reference model and its confidence in each record.

    Attributes:
        parameters: shape (parameters,), in the module's order, at the end of training.
        mean_confidence: shape (records,), probability of the true label, averaged over the steps.
    """

    parameters: NDArray[np.float32]
    mean_confidence: NDArray[np.float64]

    def least_confident(self, count: int) -> NDArray[np.int64]:
        """The records of lowest mean confidence, ascending, shape (count,): the targets.

        Raises:
            InputError: if there are fewer records.
        """
        if count > len(self.mean_confidence):
            raise InputError(
                f"num_slots {count} is more than the {len(self.mean_confidence)} private records"
            )
        return np.argsort(self.mean_confidence, kind="stable")[:count]


def write_reference(path: Path, reference: Reference, *, origin: str = "") -> None:
    """Writes a reference file; `origin` as in `files.write_arrays`."""
    write_arrays(path, header={}, arrays=vars(reference), origin=origin)


def read_reference(path: Path) -> Reference:
    """Reads a reference file.

    Raises:
        InputError: if the file is damaged or holds no reference.
    """
    _, arrays = read_arrays(path)
    try:
        return Reference(**arrays)
    except TypeError:
        raise InputError(f"{path} holds no reference model; delete it and run again") from None
