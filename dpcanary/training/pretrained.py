"""A pretrained model and its file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays


@dataclass(frozen=True)
class Pretrained:
    """A pretrained model.

    Attributes:
        parameters: shape (parameters,), in the module's order.
        test_accuracy: share of the audit's test records that it classifies correctly; NaN if there
            are none.
    """

    parameters: NDArray[np.float32]
    test_accuracy: float


def write_pretrained(path: Path, pretrained: Pretrained, *, origin: str = "") -> None:
    """Writes the file of a pretrained model; `origin` as in `files.write_arrays`."""
    header = {"test_accuracy": pretrained.test_accuracy}
    arrays = {"parameters": pretrained.parameters}
    write_arrays(path, header=header, arrays=arrays, origin=origin)


def read_pretrained(path: Path) -> NDArray[np.float32]:
    """The parameters of a pretrained model, in the module's order.

    Raises:
        InputError: if the file is damaged or holds no pretrained model.
    """
    _, arrays = read_arrays(path)
    if [*arrays] != ["parameters"]:
        raise InputError(f"{path} holds no pretrained model; delete it and run again")
    return np.asarray(arrays["parameters"], np.float32)
