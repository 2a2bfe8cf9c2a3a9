"""The records of a source, checked."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.splits import Labels

Records = NDArray[Any]

_BLOCK_NUMBERS = 2**22  # 32 MiB as float64


@dataclass(frozen=True)
class Source:
    """Records and labels, as they come: nothing is scaled or shuffled.

    Attributes:
        name: for messages.
        records: features, shape (n, F), of any real type; or images, shape (n, C, H, W); or texts,
            a Unicode array of shape (n,).
        labels: shape (n,), from 0.
        test_records: the source's own test part, of the same kind; None where it has none.
        test_labels: its labels.
        class_names: by label; empty where the source names none.
        synthetic: whether the records are made up, after a model.

    Raises:
        InputError: if shapes or numbers are not what they must be.
    """

    name: str
    records: Records
    labels: Labels
    test_records: Records | None = None
    test_labels: Labels | None = None
    class_names: tuple[str, ...] = ()
    synthetic: bool = False

    def __post_init__(self) -> None:
        _check_part(self.name, self.records, self.labels)
        if self.test_records is None or self.test_labels is None:
            return
        _check_part(f"{self.name}: test part", self.test_records, self.test_labels)
        if self.test_records.shape[1:] != self.records.shape[1:]:
            raise InputError(
                f"{self.name}: a test record has shape {self.test_records.shape[1:]}, the others"
                f" {self.records.shape[1:]}"
            )

    @property
    def kind(self) -> Literal["features", "images", "texts"]:
        """What a record is."""
        if self.records.dtype.kind == "U":
            return "texts"
        return "features" if self.records.ndim == 2 else "images"

    @property
    def num_classes(self) -> int:
        """Classes, by the largest label."""
        parts = [self.labels] if self.test_labels is None else [self.labels, self.test_labels]
        return max(int(labels.max(initial=-1)) for labels in parts) + 1

    def first(self, *, max_records: int | None, num_test: int | None) -> "Source":
        """The source with only the first records, and the first of its test part."""
        test_records, test_labels = self.test_records, self.test_labels
        return replace(
            self,
            records=self.records[:max_records],
            labels=self.labels[:max_records],
            test_records=None if test_records is None else test_records[:num_test],
            test_labels=None if test_labels is None else test_labels[:num_test],
        )


def source_of_parts(
    name: str, parts: Sequence[tuple[Records, Labels]], class_names: tuple[str, ...] = ()
) -> Source:
    """A source of a training part, and perhaps a test part."""
    (records, labels), *test = parts
    if not test:
        return Source(name, records, labels, class_names=class_names)
    return Source(name, records, labels, *test[0], class_names=class_names)


def row_blocks(num_records: int, shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of successive records of this shape, each of a few million numbers at most."""
    step = max(1, _BLOCK_NUMBERS // max(1, math.prod(shape)))
    return (slice(start, start + step) for start in range(0, num_records, step))


def integer_labels(where: str, labels: NDArray[Any]) -> Labels:
    """Labels as 64-bit integers.

    Raises:
        InputError: if they are no integers, or below 0.
    """
    if not np.issubdtype(labels.dtype, np.integer) or labels.min(initial=0) < 0:
        raise InputError(f"{where}: labels must be integers from 0")
    return labels.astype(np.int64)


def _check_part(where: str, records: Records, labels: Labels) -> None:
    if len(labels) == 0:
        raise InputError(f"{where}: there are no records")
    if labels.shape != records.shape[:1] or not _has_a_kind(records):
        raise InputError(
            f"{where}: features must be records x features, or records x channels x height x"
            f" width, and labels one per record; their shapes are {records.shape} and"
            f" {labels.shape}"
        )
    if records.dtype.kind == "f":
        _check_finite(where, records)


def _has_a_kind(records: Records) -> bool:
    return records.ndim == 1 if records.dtype.kind == "U" else records.ndim in (2, 4)


def _check_finite(where: str, records: Records) -> None:
    bad = [
        block.start + int(index)
        for block in row_blocks(len(records), records.shape[1:])
        for index in np.flatnonzero(
            ~np.isfinite(records[block]).all(axis=tuple(range(1, records.ndim)))
        )
    ]
    if bad:
        raise InputError(
            f"{where}: record {bad[0]} has a feature that is NaN or infinite ({len(bad)} such"
            " records); mend or drop them"
        )
