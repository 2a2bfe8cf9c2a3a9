"""What stands in the target record's place; one module per family crafts it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays


@dataclass(frozen=True)
class InputCanary:
    """A record: under `substitute`, world 1 trains on it and world 0 on the target in its place.

    Under `add_remove` and `zero_out`, world 0 trains on it, and world 1 on nothing in its place.

    Attributes:
        features: shape of one record's.
        label: class index.
    """

    features: NDArray[np.float32]
    label: int


@dataclass(frozen=True)
class GradientCanary:
    """A gradient of length C in one coordinate; its negative in world 1 under `substitute`.

    Attributes:
        coordinate: index into the parameters, flattened in the module's order.
    """

    coordinate: int


@dataclass(frozen=True)
class DirectionCanary:
    """A gradient in any direction; its negative in world 1 under `substitute`.

    Attributes:
        gradient: shape (parameters,), in the module's order, no longer than C.
    """

    gradient: NDArray[np.float32]


AnyCanary = InputCanary | GradientCanary | DirectionCanary


@dataclass(frozen=True)
class PlacedCanary:
    """A canary with the record in whose place it stands.

    Attributes:
        canary: the canary.
        target: index of the target among the private records.
        target_label: its label.
    """

    canary: AnyCanary
    target: int
    target_label: int


def write_canary(path: Path, placed: PlacedCanary) -> None:
    """Writes a canary file."""
    canary = placed.canary
    header = {"target": placed.target, "target_label": placed.target_label}
    if isinstance(canary, InputCanary):
        features = np.asarray(canary.features, np.float32)
        write_arrays(path, header={**header, "label": canary.label}, arrays={"features": features})
    elif isinstance(canary, DirectionCanary):
        gradient = np.asarray(canary.gradient, np.float32)
        write_arrays(path, header=header, arrays={"gradient": gradient})
    else:
        write_arrays(path, header={**header, "coordinate": canary.coordinate}, arrays={})


def read_canary(path: Path) -> PlacedCanary:
    """Reads a canary file.

    Raises:
        InputError: if the file is damaged or holds no canary.
    """
    header, arrays = read_arrays(path)
    try:
        return PlacedCanary(_canary(header, arrays), header["target"], header["target_label"])
    except KeyError as error:
        raise InputError(f"{path} holds no canary: {error} is missing; delete it") from None


def _canary(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> AnyCanary:
    if "coordinate" in header:
        return GradientCanary(coordinate=header["coordinate"])
    if "gradient" in arrays:
        return DirectionCanary(gradient=arrays["gradient"])
    return InputCanary(features=arrays["features"], label=header["label"])
