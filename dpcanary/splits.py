"""A dataset cut into private, auxiliary and test records, and its file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays

Features = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class SplitDataset:
    """Features and labels by role.

    Attributes:
        features: shape (N, F); the private records D.
        labels: shape (N,), from 0.
        auxiliary_features: shape (A, F); known to the adversary, disjoint from D.
        auxiliary_labels: shape (A,).
        test_features: shape (M, F).
        test_labels: shape (M,).
    """

    features: Features
    labels: Labels
    auxiliary_features: Features
    auxiliary_labels: Labels
    test_features: Features
    test_labels: Labels

    @property
    def num_classes(self) -> int:
        """Classes, by the largest label of all records: one may have no private records."""
        parts = (self.labels, self.auxiliary_labels, self.test_labels)
        return max(int(labels.max(initial=-1)) for labels in parts) + 1


def write_split(path: Path, split: SplitDataset, *, settings: dict[str, object]) -> None:
    """Writes a split dataset, with the settings that made it."""
    write_arrays(path, header={"settings": settings}, arrays=vars(split))


def read_split(path: Path) -> SplitDataset:
    """Reads a split dataset.

    Raises:
        InputError: if the file is damaged or holds something else.
    """
    _, arrays = read_arrays(path)
    try:
        return SplitDataset(**arrays)
    except TypeError:
        raise InputError(f"{path} holds no split dataset; delete it and run again") from None
