"""Every source that a config can name, by its name."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dpcanary.datasets.cifar10 import read_cifar10
from dpcanary.datasets.housing import read_california_housing
from dpcanary.datasets.own_files import read_arrays_of, read_parquet
from dpcanary.datasets.purchase100 import NUM_RECORDS, read_purchase100
from dpcanary.datasets.source import Source
from dpcanary.datasets.sst2 import read_sst2
from dpcanary.datasets.synthetic import purchase100_synthetic
from dpcanary.errors import InputError, suggestion

# How each is read, and from how many files at most.
_DOWNLOADED: dict[str, tuple[Callable[[Sequence[Path]], Source], int]] = {
    "cifar10": (read_cifar10, 2),
    "sst2": (read_sst2, 2),
    "california_housing": (read_california_housing, 1),
    "purchase100": (read_purchase100, 1),
}
_MADE = ("digits", "purchase100_synthetic")
_OWN: dict[str, Callable[[Path], Source]] = {".npz": read_arrays_of, ".parquet": read_parquet}
SOURCES = (*_MADE, *_DOWNLOADED)


def load_source(
    source: str,
    *,
    files: Sequence[Path] = (),
    max_records: int | None = None,
    num_test: int | None = None,
    seed: int = 0,
) -> Source:
    """Reads or makes the records of a source.

    Args:
        source: one of `SOURCES`, or the path of a user's .npz or .parquet file.
        files: what it is read from: its download, or local files in its place (the training part,
            then the test part where there is one).
        max_records: keep only the first records of the training part.
        num_test: keep only the first records of the source's own test part.
        seed: of a source that is drawn at random.

    Raises:
        InputError: if the source is unknown, or its files are not there or not what they must be.
    """
    loaded = _loaded(source, files, max_records, seed)
    return loaded.first(max_records=max_records, num_test=num_test)


def _loaded(source: str, files: Sequence[Path], max_records: int | None, seed: int) -> Source:
    if source in _MADE:
        _check_count(source, files, at_least=0, at_most=0)
        if source == "digits":
            return _digits()
        return purchase100_synthetic(num_records=max_records or NUM_RECORDS, seed=seed)
    if source in _DOWNLOADED:
        read, most = _DOWNLOADED[source]
        _check_count(source, files, at_least=1, at_most=most)
        return read(files)
    if Path(source).suffix not in _OWN:
        raise InputError(
            f"unknown dataset source {source!r}; {suggestion(source, SOURCES)} (or give the path"
            f" of an {' or '.join(_OWN)} file)"
        )
    _check_count(source, files, at_least=0, at_most=1)
    [path] = files or [Path(source)]
    return _OWN[Path(source).suffix](path)


def _check_count(source: str, files: Sequence[Path], *, at_least: int, at_most: int) -> None:
    if len(files) < at_least:
        raise InputError(f"source {source} is read from files, and none is given; download it")
    if len(files) > at_most:
        raise InputError(
            f"source {source} is read from {at_most or 'no'} files; {len(files)} are given"
        )


def _digits() -> Source:
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    return Source("digits", features, labels.astype("int64"), class_names=tuple("0123456789"))
