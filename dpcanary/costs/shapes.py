"""The number and shape of a dataset's records, before it is prepared."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpcanary.datasets.source import KNOWN_SOURCES, KnownSource
from dpcanary.datasets.sources import load_source
from dpcanary.encoders.settings import MINILM_PACKAGE
from dpcanary.errors import InputError
from dpcanary.files import read_json
from dpcanary.settings.experiment import Dataset

# Numbers of features of encoders without a local config, by the last part of the name.
_NUM_FEATURES = {"all-MiniLM-L6-v2": 384, MINILM_PACKAGE: 384}
_USUAL_NUM_FEATURES = 768
# The keys under which configs of encoders hold the number of features, or that of each layer.
_SIZE_KEYS = ("hidden_size", "hidden_sizes", "dim", "d_model", "n_embd")


@dataclass(frozen=True)
class Shape:
    """How many private, auxiliary and test records a dataset has, and the shape of one record.

    `num_source`, the records of all parts of its source, affects no probe.
    """

    num_records: int
    num_auxiliary: int
    num_test: int
    features: tuple[int, ...]
    num_classes: int
    num_source: int = field(default=0, compare=False)


def shape_of(dataset: Dataset, *, folder: Path | None) -> Shape:
    """The shape of a dataset; encoders are looked up in a folder of local copies first.

    Raises:
        InputError: if a user's own file is missing or wrong, or texts have no encoder.
    """
    source = KNOWN_SOURCES.get(dataset.source) or _own_source(dataset)
    features = (_num_features(dataset.encoder, folder),) if dataset.encoder else source.shape
    if not features:
        raise InputError(
            f"dataset of {dataset.source}: its records are texts, so it needs an encoder"
        )
    most = dataset.max_records or source.num_training
    training = most if source.is_drawn else min(source.num_training, most)
    others = training - dataset.num_records
    if source.num_test is None:
        auxiliary = dataset.num_auxiliary or others // 2
        test = dataset.num_test or others - auxiliary
    else:
        auxiliary = dataset.num_auxiliary or others
        test = min(source.num_test, dataset.num_test or source.num_test)
    num_source = training + (source.num_test or 0)
    return Shape(dataset.num_records, auxiliary, test, features, source.num_classes, num_source)


def _num_features(encoder: str, folder: Path | None) -> int:
    places = [place / encoder / "config.json" for place in (folder or Path(), Path())]
    for config in (read_json(place) for place in places if place.exists()):
        for key in _SIZE_KEYS:
            if key in config:
                return int(np.ravel(config[key])[-1])
    return _NUM_FEATURES.get(Path(encoder).name, _USUAL_NUM_FEATURES)


def _own_source(dataset: Dataset) -> KnownSource:
    """A user's own file, whose shape is known only after reading."""
    own = load_source(dataset.source, label_column=dataset.label_column)
    test = None if own.test is None else len(own.test)
    shape = own.training.features.shape[1:]
    return KnownSource(len(own.training), test, shape, own.num_classes, max_files=1)
