"""The records of a source, checked."""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpcanary.data.records import Records
from dpcanary.errors import InputError


class Purpose(IntEnum):
    """Part of every stream's key. Never change a number or reuse it, in any package."""

    RECORDS = 1  # which records of a dataset are private, auxiliary and test records
    SYNTHETIC_RECORDS = 9  # generated data: its model, then its blocks of records


@dataclasses.dataclass(frozen=True)
class KnownSource:
    """What is known of a source.

    Attributes:
        num_training: records of its training part; the default number if records are drawn.
        num_test: records of its test part; None if it has none.
        shape: of one record; empty for texts.
        num_classes: number of classes.
        max_files: how many files it may be read from; 0 if it needs no file.
        is_drawn: whether its records are drawn at random, as many as are asked for.
    """

    num_training: int
    num_test: int | None
    shape: tuple[int, ...]
    num_classes: int
    max_files: int
    is_drawn: bool = False

    @property
    def is_generated(self) -> bool:
        """Whether the records need no file."""
        return self.max_files == 0


KNOWN_SOURCES = {
    "digits": KnownSource(1797, None, (64,), 10, max_files=0),
    "digits_parity": KnownSource(1797, None, (64,), 2, max_files=0),
    "cifar10": KnownSource(50_000, 10_000, (3, 32, 32), 10, max_files=2),
    "sst2": KnownSource(67_349, 872, (), 2, max_files=2),
    "california_housing": KnownSource(20_640, None, (8,), 2, max_files=1),
    "purchase100": KnownSource(197_324, None, (600,), 100, max_files=1),
    "purchase100_synthetic": KnownSource(197_324, None, (600,), 100, max_files=0, is_drawn=True),
}
LABELS_ARE_CLASSES = (
    "source {} has classes; labels that are numbers (loss squared_error) are for files of your own"
)
OWN_SUFFIXES = (".npz", ".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz")  # of a user's own files


def is_own(source: str) -> bool:
    """Whether a source is the path of a user's own file, or of a folder, which ends with a slash.

    Example:
        >>> is_own("my/table.csv.gz"), is_own("photos/"), is_own("photos"), is_own("digits")
        (True, True, False, False)
    """
    return source.endswith((*OWN_SUFFIXES, "/"))


_BLOCK_NUMBERS = 2**22  # 32 MiB as float64


def own_files(source: str, preparation: str | None) -> list[Path]:
    """The files that a user's own source is read from."""
    return [Path(source), *map(Path, filter(None, [preparation]))]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """From which records the values of a preparation come; see `preparation`.

    Attributes:
        hashes: of each training record before preparation.
        made_from: the digest of the records that the values come from; None if it is not compared.
    """

    hashes: NDArray[np.uint64]
    made_from: str | None

    def digest(self, rows: NDArray[np.int64]) -> str:
        """The SHA-256 of these records, in any order."""
        return hashlib.sha256(np.sort(self.hashes[rows]).tobytes()).hexdigest()

    def check(self, name: str, auxiliary: NDArray[np.int64]) -> None:
        """Compares the records that values come from with those that the adversary knows.

        Raises:
            InputError: if they are others, so that values may come from private records.
        """
        if self.made_from not in (None, self.digest(auxiliary)):
            raise InputError(
                f"{name}: its preparation was made from other records than those that the adversary"
                " knows (another file, seed or number of records), so it may tell of private ones;"
                " name another file (key preparation, or another --name); or delete this one, if"
                " nothing else uses it, and run again: then it is written again"
            )


@dataclasses.dataclass(frozen=True)
class Source:
    """The records of a source, neither scaled nor shuffled.

    Attributes:
        name: for messages.
        training: features, shape (n, F), of any real type; or images, shape (n, C, H, W); or
            texts, shape (n,).
        test: the source's own test part, of the same kind; None if it has none.
        class_names: by label; empty if the source does not name its classes.
        names: of the training records, such as paths of images; empty if they have none.
        synthetic: whether a model generated the records.
        prepared: where a preparation has made the features, from which records.

    Raises:
        InputError: if there are no records, a shape is wrong, some records alone have names, or a
            number is NaN or infinite.
    """

    name: str
    training: Records
    test: Records | None = None
    _: dataclasses.KW_ONLY
    class_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    synthetic: bool = False
    prepared: Prepared | None = None

    def __post_init__(self) -> None:
        _check_part(self.name, self.training)
        if self.names and len(self.names) != len(self.training):
            raise InputError(
                f"{self.name}: {len(self.training)} records have {len(self.names)} names"
            )
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
        """The kind of record."""
        if self.training.features.dtype.kind == "U":
            return "texts"
        return "features" if self.training.features.ndim == 2 else "images"

    @property
    def num_classes(self) -> int:
        """Number of classes: one more than the largest label of both parts."""
        return max(part.num_classes for part in (self.training, self.test) if part is not None)

    def first(self, *, max_records: int | None, num_test: int | None) -> "Source":
        """The source with only the first records of its training and test parts."""
        test = None if self.test is None else self.test[:num_test]
        kept, prepared = self.training[:max_records], self.prepared
        if prepared is not None:
            prepared = dataclasses.replace(prepared, hashes=prepared.hashes[:max_records])
        names = self.names[:max_records]
        return dataclasses.replace(self, training=kept, test=test, names=names, prepared=prepared)


def row_blocks(num_records: int, shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of successive records of this shape, each of a few million numbers at most."""
    step = max(1, _BLOCK_NUMBERS // max(1, math.prod(shape)))
    return (slice(start, start + step) for start in range(0, num_records, step))


def _check_part(where: str, records: Records) -> None:
    features = records.features
    if len(records) == 0:
        raise InputError(f"{where}: there are no records")
    if features.ndim not in ((1,) if features.dtype.kind == "U" else (2, 4)):
        raise InputError(
            f"{where}: features must be records x features, or records x channels x height x"
            f" width; their shape is {features.shape}"
        )
    if features.dtype.kind != "f":
        return
    axes = tuple(range(1, features.ndim))
    blocks = row_blocks(len(records), features.shape[1:])
    finite = np.concatenate([np.isfinite(features[block]).all(axis=axes) for block in blocks])
    if not finite.all():
        raise InputError(
            f"{where}: record {np.argmin(finite)} has a feature that is NaN or infinite"
            f" ({np.sum(~finite)} such records); fix or drop them"
        )


def check_hashes(
    files: Sequence[Path], hashes: Sequence[str], expected: Sequence[str], *, where: str = ""
) -> None:
    """Compares the SHA-256 of files with those that they must have; none wanted are not compared.

    Raises:
        InputError: names the file that differs.
    """
    if not expected:
        return
    if len(hashes) != len(expected):
        raise InputError(
            f"{where}{len(hashes)} files are read, and {len(expected)} hashes are given"
        )
    for file, sha256, other in zip(files, hashes, expected, strict=True):
        if sha256 != other:
            raise InputError(
                f"{where}{file} has sha256 {sha256}, and must have {other}: it changed, or was"
                " damaged; put the right file back (a download: delete it), and run again"
            )
