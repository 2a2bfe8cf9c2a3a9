"""Records: features with labels, a dataset's records by role, and the file of such a split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays

Labels = NDArray[np.int64]

# In the file: the prefix of each role's arrays.
_PREFIXES = {"private": "", "auxiliary": "auxiliary_", "test": "test_"}


@dataclass(frozen=True)
class Records:
    """Features and labels of some records.

    Arrays, lists and PyTorch tensors are taken, and kept as arrays.

    Attributes:
        features: shape (n, ...): numbers; or texts, shape (n,), that are still to be encoded.
        labels: shape (n,), integers from 0.

    Raises:
        InputError: if these are no such arrays, or not equally many.
    """

    features: NDArray[Any]
    labels: Labels

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", _array("features", self.features, kinds="fiuU"))
        object.__setattr__(self, "labels", _labels(self.labels))
        if self.features.ndim == 0 or self.labels.shape != self.features.shape[:1]:
            raise InputError(
                f"records: features of shape {self.features.shape} need labels of shape"
                f" {self.features.shape[:1]}, one per record; theirs is {self.labels.shape}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: slice | NDArray[Any]) -> "Records":
        return Records(self.features[index], self.labels[index])

    @property
    def num_classes(self) -> int:
        """Classes, by the largest label: a class may have no record here."""
        return int(self.labels.max(initial=-1)) + 1


def records_from(where: object, features: object, labels: object) -> Records:
    """Records that were read from somewhere, which an error then names.

    Raises:
        InputError: see `Records`.
    """
    try:
        return Records(features, labels)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


@dataclass(frozen=True)
class Split:
    """A dataset's records by role, all disjoint.

    Attributes:
        private: the records D that training protects.
        auxiliary: known to the adversary.
        test: for measuring accuracy.
    """

    private: Records
    auxiliary: Records
    test: Records

    @property
    def num_classes(self) -> int:
        """Classes, by the largest label of all records."""
        return max(part.num_classes for part in (self.private, self.auxiliary, self.test))


def write_split(path: Path, split: Split, *, settings: dict[str, object]) -> None:
    """Writes the records of a dataset, with the settings that made the split."""
    arrays = {
        f"{prefix}{name}": array
        for role, prefix in _PREFIXES.items()
        for name, array in vars(getattr(split, role)).items()
    }
    write_arrays(path, header={"settings": settings}, arrays=arrays)


def read_split(path: Path) -> Split:
    """Reads the records of a dataset.

    Raises:
        InputError: if the file is damaged or holds something else.
    """
    _, arrays = read_arrays(path)
    try:
        parts = {
            role: records_from(path, arrays[f"{prefix}features"], arrays[f"{prefix}labels"])
            for role, prefix in _PREFIXES.items()
        }
    except KeyError:
        raise InputError(f"{path} holds no split dataset; delete it and run again") from None
    return Split(**parts)


def integer_labels(where: str, labels: NDArray[Any]) -> Labels:
    """Labels as 64-bit integers.

    Args:
        where: for the error.
        labels: any shape.

    Raises:
        InputError: if they are no integers, or one is negative.
    """
    in_range = labels.dtype.kind in "iub" and labels.min(initial=0) >= 0
    if not in_range or labels.max(initial=0) > np.iinfo(np.int64).max:
        raise InputError(f"{where}: labels must be integers from 0")
    return labels.astype(np.int64, copy=False)


def _labels(labels: object) -> Labels:
    return integer_labels("records", _array("labels", labels, kinds="fiub"))


def _array(name: str, values: object, *, kinds: str) -> NDArray[Any]:
    """Values as an array of one of NumPy's kinds of types.

    Of an empty list, NumPy makes floats; there is no wrong label in it.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"records: {name} cannot be made an array: {error}") from None
    if array.dtype.kind not in kinds:
        raise InputError(f"records: {name} must be numbers, not {array.dtype}")
    return array if array.size else array.astype(np.int64 if name == "labels" else array.dtype)
