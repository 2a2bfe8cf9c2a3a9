"""Every source that a config can name, read by its name."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dpcanary.datasets.cifar10 import read_cifar10
from dpcanary.datasets.housing import read_california_housing
from dpcanary.datasets.known import KNOWN_SOURCES, OWN_SUFFIXES
from dpcanary.datasets.own_files import read_arrays_of, read_own_table
from dpcanary.datasets.purchase100 import read_purchase100
from dpcanary.datasets.source import Source, SourceStage
from dpcanary.datasets.sst2 import read_sst2
from dpcanary.datasets.synthetic import purchase100_synthetic
from dpcanary.errors import InputError, suggestion
from dpcanary.records import Records


def _digits() -> Source:
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    return Source("digits", Records(features, labels), class_names=tuple("0123456789"))


# Arguments: the files, the number of records to draw, and a seed.
LOAD: dict[str, Callable[[Sequence[Path], int, int], Source]] = {
    "digits": lambda files, num_records, seed: _digits(),
    "cifar10": lambda files, num_records, seed: read_cifar10(files),
    "sst2": lambda files, num_records, seed: read_sst2(files),
    "california_housing": lambda files, num_records, seed: read_california_housing(files),
    "purchase100": lambda files, num_records, seed: read_purchase100(files),
    "purchase100_synthetic": lambda files, num_records, seed: purchase100_synthetic(
        num_records=num_records, seed=seed
    ),
}


def load_records(
    stage: SourceStage, *, files: Sequence[Path], features: Path | None = None
) -> Source:
    """Reads or generates the records of a stage's source.

    Args:
        stage: names the source.
        files: the files of the source.
        features: the file of its encoded records, if there is one; read in place of `files`.

    Raises:
        InputError: see `load_source`.
    """
    if features is not None:
        return read_arrays_of(features)
    return load_source(
        stage.source,
        files=files,
        max_records=stage.max_records,
        num_test=stage.num_test,
        seed=stage.seed,
        label_column=stage.label_column,
    )


def load_source(
    source: str,
    *,
    files: Sequence[Path] = (),
    max_records: int | None = None,
    num_test: int | None = None,
    seed: int = 0,
    label_column: str = "label",
) -> Source:
    """Reads or generates the records of a source.

    Args:
        source: one of `known.KNOWN_SOURCES`, or the path of a user's own file.
        files: the source's download, or local files in its place (the training part, then the test
            part if there is one).
        max_records: keep only the first records of the training part.
        num_test: keep only the first records of the source's own test part.
        seed: of a source that is drawn at random.
        label_column: of a user's own table.

    Raises:
        InputError: if the source is unknown, or its files are missing or invalid.
    """
    known = KNOWN_SOURCES.get(source)
    if known is None:
        found = _own(source, files, label_column).first(max_records=max_records, num_test=num_test)
        _check_classes(found)
        return found
    if len(files) < min(known.max_files, 1):
        raise InputError(f"source {source} is read from files, and none is given; download it")
    if len(files) > known.max_files:
        raise InputError(
            f"source {source} is read from {known.max_files or 'no'} files, not from {len(files)}"
        )
    found = LOAD[source](files, max_records or known.num_training, seed)
    return found.first(max_records=max_records, num_test=num_test)


def _own(source: str, files: Sequence[Path], label_column: str) -> Source:
    suffix = Path(source).suffix
    if suffix not in OWN_SUFFIXES:
        raise InputError(
            f"unknown dataset source {source!r}; {suggestion(source, KNOWN_SOURCES)} (or give the"
            f" path of a file: {', '.join(OWN_SUFFIXES)})"
        )
    if len(files) > 1:
        raise InputError(f"source {source} is read from 1 file; {len(files)} are given")
    [path] = files or [Path(source)]
    return read_arrays_of(path) if suffix == ".npz" else read_own_table(path, label_column)


def _check_classes(source: Source) -> None:
    """Refuses classes without a record: a model would be trained with an output for them."""
    labels = np.unique(source.training.labels)
    if len(labels) < source.num_classes:
        missing = np.setdiff1d(np.arange(len(labels) + 1), labels)
        raise InputError(
            f"{source.name}: no record has label {missing[0]}, though labels go up to"
            f" {source.num_classes - 1}; number the classes from 0 without gaps"
        )
