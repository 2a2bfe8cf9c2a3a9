"""The records of a source, checked."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpcanary.errors import InputError
from dpcanary.records import Records

_BLOCK_NUMBERS = 2**22  # 32 MiB as float64


@dataclass(frozen=True)
class Source:
    """Records as they come: nothing is scaled or shuffled.

    Attributes:
        name: for messages.
        training: features, shape (n, F), of any real type; or images, shape (n, C, H, W); or
            texts, shape (n,).
        test: the source's own test part, of the same kind; None where it has none.
        class_names: by label; empty where the source names none.
        synthetic: whether the records are made up, after a model.

    Raises:
        InputError: if shapes or numbers are not what they must be.
    """

    name: str
    training: Records
    test: Records | None = None
    class_names: tuple[str, ...] = ()
    synthetic: bool = False

    def __post_init__(self) -> None:
        _check_part(self.name, self.training)
        if self.test is None:
            return
        _check_part(f"{self.name}: test part", self.test)
        if self.test.features.shape[1:] != self.training.features.shape[1:]:
            raise InputError(
                f"{self.name}: a test record has shape {self.test.features.shape[1:]}, the others"
                f" {self.training.features.shape[1:]}"
            )

    @property
    def kind(self) -> Literal["features", "images", "texts"]:
        """What a record is."""
        if self.training.features.dtype.kind == "U":
            return "texts"
        return "features" if self.training.features.ndim == 2 else "images"

    @property
    def num_classes(self) -> int:
        """Classes, by the largest label."""
        test = 0 if self.test is None else self.test.num_classes
        return max(self.training.num_classes, test)

    def first(self, *, max_records: int | None, num_test: int | None) -> "Source":
        """The source with only the first records, and the first of its test part."""
        return Source(
            name=self.name,
            training=self.training[:max_records],
            test=None if self.test is None else self.test[:num_test],
            class_names=self.class_names,
            synthetic=self.synthetic,
        )


def source_of_parts(
    name: str, parts: Sequence[Records], class_names: tuple[str, ...] = ()
) -> Source:
    """A source of a training part, and perhaps a test part."""
    training, *test = parts
    return Source(name, training, test[0] if test else None, class_names)


def row_blocks(num_records: int, shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of successive records of this shape, each of a few million numbers at most."""
    step = max(1, _BLOCK_NUMBERS // max(1, math.prod(shape)))
    return (slice(start, start + step) for start in range(0, num_records, step))


def _check_part(where: str, records: Records) -> None:
    features = records.features
    if len(records) == 0:
        raise InputError(f"{where}: there are no records")
    is_text = features.dtype.kind == "U"
    if features.ndim not in ((1,) if is_text else (2, 4)):
        raise InputError(
            f"{where}: features must be records x features, or records x channels x height x"
            f" width; their shape is {features.shape}"
        )
    if features.dtype.kind == "f":
        _check_finite(where, records)


def _check_finite(where: str, records: Records) -> None:
    features = records.features
    axes = tuple(range(1, features.ndim))
    bad = [
        block.start + int(index)
        for block in row_blocks(len(records), features.shape[1:])
        for index in np.flatnonzero(~np.isfinite(features[block]).all(axis=axes))
    ]
    if bad:
        raise InputError(
            f"{where}: record {bad[0]} has a feature that is NaN or infinite ({len(bad)} such"
            " records); mend or drop them"
        )
