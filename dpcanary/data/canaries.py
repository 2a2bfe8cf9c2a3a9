"""Canaries, which take the place of target records, one in each slot of a run; and their file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.core.files import read_arrays, write_arrays
from dpcanary.errors import InputError


@dataclass(frozen=True)
class InputCanary:
    """A record in place of a target record.

    Under `substitute`, world 1 trains on it and world 0 on the target. Under `add_remove` and
    `zero_out`, world 0 trains on it, and world 1 has nothing in its place.

    Attributes:
        features: shape of one record's.
        label: class index, or a number where labels are numbers.
        target: index of the target among the private records.
    """

    features: NDArray[np.float32]
    label: int | float
    target: int


@dataclass(frozen=True)
class GradientCanary:
    """A gradient of length C in one coordinate, in place of the gradient of a target record.

    World 1 has its negative under `substitute`, and nothing under `add_remove` and `zero_out`.

    Attributes:
        coordinate: index into the parameters, flattened in the module's order.
        target: index of the target among the private records.
        drift: how far the parameter is expected to move without the canary, up to each recorded
            step; none if this is not known. Scores subtract it, so that slots are alike.
    """

    coordinate: int
    target: int
    drift: tuple[float, ...] = ()


@dataclass(frozen=True)
class DirectionCanary:
    """A gradient in any direction, in place of the gradient of a target record.

    World 1 has its negative under `substitute`, and nothing under `add_remove` and `zero_out`.

    Attributes:
        gradient: shape (parameters,), in the module's order, no longer than C.
        target: index of the target among the private records.
    """

    gradient: NDArray[np.float32]
    target: int


Canary = InputCanary | GradientCanary | DirectionCanary


@dataclass(frozen=True)
class CanarySet:
    """The canaries of a run, one for each slot, all of one type, with labels of their targets."""

    canaries: tuple[Canary, ...]
    target_labels: tuple[int | float, ...]

    def __post_init__(self) -> None:
        if len(self.target_labels) != len(self.canaries):
            raise InputError(
                f"there are {len(self.canaries)} canaries, but labels of"
                f" {len(self.target_labels)} targets"
            )

    @property
    def labels(self) -> tuple[int | float, ...]:
        """The labels of the K canaries; gradients have none, which is an error."""
        labels = [canary.label for canary in self.canaries if isinstance(canary, InputCanary)]
        if len(labels) < len(self.canaries):
            raise InputError("gradient canaries have no labels: this needs input canaries")
        return tuple(labels)


def canary_type(canaries: Sequence[Canary]) -> type[Canary]:
    """The type that all canaries of a run have.

    Raises:
        InputError: if there is no canary, or they are of different types.
    """
    types = {type(canary) for canary in canaries}
    if len(types) != 1:
        names = " and ".join(sorted(kind.__name__ for kind in types)) or "none"
        raise InputError(f"a run's canaries must be of one type; these are {names}")
    return types.pop()


def write_canaries(path: Path, canary_set: CanarySet, *, origin: str = "") -> None:
    """Writes a canary file: an array for each attribute, whose first axis is the slots.

    `origin` is as in `files.write_arrays`.
    """
    canaries = canary_set.canaries
    names = canary_type(canaries).__annotations__
    try:
        arrays = {name: np.array([getattr(canary, name) for canary in canaries]) for name in names}
    except ValueError:
        raise InputError("the canaries of a run must all have the same shape") from None
    for name in {"features", "gradient"} & arrays.keys():
        arrays[name] = arrays[name].astype(np.float32)
    arrays["target_label"] = np.array(canary_set.target_labels)
    write_arrays(path, header={"num_slots": len(canaries)}, arrays=arrays, origin=origin)


def read_canaries(path: Path) -> CanarySet:
    """Reads a canary file.

    Raises:
        InputError: if the file is damaged or holds no canaries.
    """
    _, arrays = read_arrays(path)
    for kind in (InputCanary, GradientCanary, DirectionCanary):
        names = [*kind.__annotations__]
        if arrays.keys() == {*names, "target_label"}:
            columns = [_of_slots(arrays[name]) for name in names]
            canaries = tuple(kind(*values) for values in zip(*columns, strict=True))
            return CanarySet(canaries, tuple(arrays["target_label"].tolist()))
    raise InputError(f"{path} holds no canaries; delete it and run again")


def _of_slots(values: NDArray[Any]) -> list[Any]:
    """Each slot's part: a number, a tuple of numbers in double precision, or an array."""
    if values.ndim == 1:
        return list(values.tolist())
    return [tuple(row) for row in values.tolist()] if values.dtype == np.float64 else [*values]
