"""A user's own data as arrays in an .npz file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.datasets.source import Source
from dpcanary.errors import InputError
from dpcanary.files import Arrays, read_npz
from dpcanary.records import Records, integer_labels, records_from


def read_arrays_of(path: Path) -> Source:
    """Reads an .npz file with `features`, `labels`, and optionally `test_features`, `test_labels`.

    Raises:
        InputError: if the file is damaged, lacks an array, or has unusable features or labels.
    """
    arrays = read_npz(path)
    has_test = "test_features" in arrays or "test_labels" in arrays
    prefixes = ("", "test_") if has_test else ("",)
    return Source(str(path), *(_part(path, arrays, prefix) for prefix in prefixes))


def _part(path: Path, arrays: Arrays, prefix: str) -> Records:
    features, labels = f"{prefix}features", f"{prefix}labels"
    missing = [name for name in (features, labels) if name not in arrays]
    if missing:
        raise InputError(f"{path} has no array {' and no '.join(missing)}")
    numbers = arrays[features]
    if numbers.dtype.kind not in "fiub":
        raise InputError(f"{path}: {features} must be real numbers, not {numbers.dtype}")
    checked = integer_labels(f"{path}: {labels}", arrays[labels])
    return records_from(path, as_numbers(numbers), checked)


def as_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Truth values as bytes 0 and 1; numbers as they are."""
    return array.astype(np.uint8) if array.dtype.kind == "b" else array
