"""The reference model: what a training without privacy showed, and its file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays


@dataclass(frozen=True)
class Reference:
    """The reference model and what its training showed.

    Attributes:
        parameters: shape (parameters,), in the module's order; at the end of training.
        mean_confidence: shape (records,); probability of the true label, averaged over the steps.
        target: the record of lowest mean confidence.
    """

    parameters: NDArray[np.float32]
    mean_confidence: NDArray[np.float64]
    target: int


def write_reference(path: Path, reference: Reference) -> None:
    """Writes a reference file."""
    write_arrays(
        path,
        header={"target": reference.target},
        arrays={"parameters": reference.parameters, "mean_confidence": reference.mean_confidence},
    )


def read_reference(path: Path) -> Reference:
    """Reads a reference file.

    Raises:
        InputError: if the file is damaged or holds no reference.
    """
    header, arrays = read_arrays(path)
    try:
        return Reference(target=header["target"], **arrays)
    except (KeyError, TypeError):
        raise InputError(f"{path} holds no reference model; delete it and run again") from None
