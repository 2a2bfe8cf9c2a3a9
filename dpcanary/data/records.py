"""Records: features with labels, the split of a dataset into roles, and the file of a split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.core.files import read_arrays, write_arrays
from dpcanary.errors import InputError

Labels = NDArray[np.int64] | NDArray[np.float32]

_MAX_LABEL = np.iinfo(np.int64).max
# Prefixes of the names of each role's arrays in the file.
_PREFIXES = {"private": "", "auxiliary": "auxiliary_", "test": "test_"}


@dataclass(frozen=True)
class Records:
    """Features and labels of some records: arrays, lists or PyTorch tensors, stored as arrays.

    Attributes:
        features: numbers, shape (n, ...); or texts to be encoded, shape (n,).
        labels: classes, which are integers from 0, or numbers in single precision, shape (n,).

    Raises:
        InputError: if the types are wrong, or there is not one label per record.
    """

    features: NDArray[Any]
    labels: Labels

    def __post_init__(self) -> None:
        labels = checked_array("labels", self.labels, kinds="fiub")
        if labels.size == 0:  # NumPy makes floats of an empty list
            labels = labels.astype(np.int64)
        object.__setattr__(self, "features", checked_array("features", self.features, kinds="fiuU"))
        check = number_labels if labels.dtype.kind == "f" else integer_labels
        object.__setattr__(self, "labels", check("records", labels))
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
    def has_classes(self) -> bool:
        """Whether the labels are classes; if not, they are numbers."""
        return self.labels.dtype.kind != "f"

    @property
    def num_classes(self) -> int:
        """One more than the largest label, even if a class has no record; 1 for numbers."""
        return int(self.labels.max(initial=-1)) + 1 if self.has_classes else 1


def records_from(where: object, features: object, labels: object) -> Records:
    """`Records` whose errors name their origin `where`."""
    try:
        return Records(features, labels)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


@dataclass(frozen=True)
class Scaling:
    """How features were standardised: less a mean, divided by a positive deviation.

    Their shapes broadcast with that of the features.
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]


@dataclass(frozen=True)
class Split:
    """A dataset's records by role; no record has two roles.

    Attributes:
        private: the dataset D that training protects.
        auxiliary: records known to the adversary.
        test: records for measuring accuracy.
        scaling: of the features of all; None if it is not known.
        private_rows: for each private record, its row in the source; None if it is not known.
        label_scaling: of labels that are numbers; None if they are classes, or it is not known.
        private_names: of each private record, such as the path of an image; None if it has none.
        class_names: by label; None if the source does not name its classes.

    Raises:
        InputError: if labels are classes in one part, and numbers in another.
    """

    private: Records
    auxiliary: Records
    test: Records
    scaling: Scaling | None = None
    private_rows: NDArray[np.int64] | None = None
    label_scaling: Scaling | None = None
    private_names: NDArray[np.str_] | None = None
    class_names: NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        parts = (self.private, self.auxiliary, self.test)
        if len({part.has_classes for part in parts if len(part)}) > 1:
            raise InputError("labels must be classes in all parts of a split, or numbers in all")

    @property
    def num_classes(self) -> int:
        """Number of classes: one more than the largest label of all records."""
        return max(part.num_classes for part in (self.private, self.auxiliary, self.test))


def write_split(path: Path, split: Split, *, settings: dict[str, object], origin: str = "") -> None:
    """Writes a split, with the settings that made it; `origin` as in `files.write_arrays`."""
    arrays = {
        f"{prefix}{name}": array
        for role, prefix in _PREFIXES.items()
        for name, array in vars(getattr(split, role)).items()
    }
    for prefix in ("scaling", "label_scaling"):
        if scaling := getattr(split, prefix):
            arrays |= {f"{prefix}_{name}": array for name, array in vars(scaling).items()}
    for name in ("private_rows", "private_names", "class_names"):
        if getattr(split, name) is not None:
            arrays[name] = getattr(split, name)
    write_arrays(path, header={"settings": settings}, arrays=arrays, origin=origin)


def read_split(path: Path) -> Split:
    """Reads a split.

    Raises:
        InputError: if the file is damaged or holds no split.
    """
    _, arrays = read_arrays(path)
    try:
        parts = {
            role: records_from(path, arrays[f"{prefix}features"], arrays[f"{prefix}labels"])
            for role, prefix in _PREFIXES.items()
        }
    except KeyError:
        raise InputError(f"{path} holds no split dataset; delete it and run again") from None
    scalings = {
        prefix: Scaling(arrays[f"{prefix}_mean"], arrays[f"{prefix}_deviation"])
        for prefix in ("scaling", "label_scaling")
        if f"{prefix}_mean" in arrays
    }
    try:
        return Split(
            **parts,
            scaling=scalings.get("scaling"),
            private_rows=arrays.get("private_rows"),
            label_scaling=scalings.get("label_scaling"),
            private_names=arrays.get("private_names"),
            class_names=arrays.get("class_names"),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def integer_labels(where: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    """Labels of any shape (integers or truth values) as 64-bit integers.

    Raises:
        InputError: if they are not integers, or one is negative or too large; it names `where`.
    """
    is_integer = labels.dtype.kind in "iub"
    if not is_integer or labels.min(initial=0) < 0 or labels.max(initial=0) > _MAX_LABEL:
        raise InputError(f"{where}: labels must be integers from 0")
    return labels.astype(np.int64, copy=False)


def number_labels(where: str, labels: NDArray[Any]) -> NDArray[np.float32]:
    """Labels that are numbers, in single precision.

    Raises:
        InputError: if one is no finite number of single precision; it names `where`.
    """
    if labels.dtype.kind in "fiub":
        with np.errstate(over="ignore"):
            numbers = labels.astype(np.float32)
        if np.isfinite(numbers).all():
            return numbers
    raise InputError(f"{where}: labels must be finite numbers")


def checked_array(name: str, values: object, *, kinds: str) -> NDArray[Any]:
    """Values as an array of one of NumPy's kinds of types.

    Raises:
        InputError: if they are not; it calls them `name`.
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"records: {name} cannot be made an array: {error}") from None
    if array.dtype.kind not in kinds:
        raise InputError(f"records: {name} must be numbers, not {array.dtype}")
    return array
