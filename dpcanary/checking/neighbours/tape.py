"""The sums of a training's steps, on disk: those of the first run are read in all later ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, bfloat16, from_numpy

Array = NDArray[Any]


class Tape:
    """Arrays by step and kind, one file each, so that memory holds those of one step at most."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, step: int, kind: str, values: Sequence[Any]) -> None:
        """Keeps some arrays or tensors; `step` and `kind` name them."""
        with self._path(step, kind).open("wb") as file:
            for value in values:
                np.lib.format.write_array(file, array_of(value), allow_pickle=False)

    def read(self, step: int, kind: str, count: int) -> list[Array]:
        """The arrays that were kept under a name, of which there are `count`."""
        with self._path(step, kind).open("rb") as file:
            return [np.lib.format.read_array(file, allow_pickle=False) for _ in range(count)]

    def _path(self, step: int, kind: str) -> Path:
        return self._folder / f"{kind}-{step}.bin"


def array_of(value: Any) -> Array:
    """The values of a tensor or an array, in the memory of the processor."""
    if isinstance(value, Tensor):
        value = value.to_local() if hasattr(value, "to_local") else value
        value = value.detach().cpu()
        return np.asarray((value.float() if value.dtype is bfloat16 else value).numpy())
    return np.asarray(value)


def like(value: Array, other: Any) -> Any:
    """An array as a tensor if `other` is one, of its shape, type and device."""
    if isinstance(other, Tensor):
        tensor = from_numpy(np.ascontiguousarray(value))
        return tensor.to(device=other.device, dtype=other.dtype).reshape(other.shape)
    return value.astype(np.asarray(other).dtype, copy=False).reshape(np.shape(other))
