"""What stands in the target record's place; one module per family crafts it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays


@dataclass(frozen=True)
class InputCanary:
    """A record that replaces the target in world 1; the target itself trains in world 0.

    Attributes:
        features: shape (num_features,).
        label: class index.
    """

    features: NDArray[np.float32]
    label: int


@dataclass(frozen=True)
class GradientCanary:
    """A gradient that replaces the target's: +C in world 0, -C in world 1, in one coordinate.

    Attributes:
        coordinate: index into the flattened parameters.
    """

    coordinate: int


@dataclass(frozen=True)
class PlacedCanary:
    """A canary with the record in whose place it stands.

    Attributes:
        canary: the canary.
        target: index of the target among the private records.
        target_label: its label.
    """

    canary: InputCanary | GradientCanary
    target: int
    target_label: int


def write_canary(path: Path, placed: PlacedCanary) -> None:
    """Writes a canary file."""
    canary = placed.canary
    header = {"target": placed.target, "target_label": placed.target_label}
    if isinstance(canary, InputCanary):
        features = np.asarray(canary.features, np.float32)
        write_arrays(path, header={**header, "label": canary.label}, arrays={"features": features})
    else:
        write_arrays(path, header={**header, "coordinate": canary.coordinate}, arrays={})


def read_canary(path: Path) -> PlacedCanary:
    """Reads a canary file.

    Raises:
        InputError: if the file is damaged or holds no canary.
    """
    header, arrays = read_arrays(path)
    try:
        canary = (
            GradientCanary(coordinate=header["coordinate"])
            if "coordinate" in header
            else InputCanary(features=arrays["features"], label=header["label"])
        )
        return PlacedCanary(canary, header["target"], header["target_label"])
    except KeyError as error:
        raise InputError(f"{path} holds no canary: {error} is missing; delete it") from None
