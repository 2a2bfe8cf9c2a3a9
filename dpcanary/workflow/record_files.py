"""Where the records of datasets come from: downloads, or local files."""

import re
from pathlib import Path

from dpcanary.data.dataset_catalogue import Entry
from dpcanary.data.encoder_settings import PACKAGED_ENCODERS
from dpcanary.experiment.data_files import DataFiles
from dpcanary.experiment.experiment_config import Dataset
from dpcanary.experiment.products import Products

# Like downloads, all experiments of a folder share these: they do not depend on its audits.
FEATURES = "resources/features"
ENCODERS = "resources/encoders"
# Hashes of downloads whose hash was unknown before the first download. Users commit this file.
LOCK = "downloads.lock.json"


class SourceRules:
    """Files and settings for the rules of datasets.

    Attributes:
        files: of the datasets.
        source_of_file: for each file that can be downloaded, its source.
        encoded: for each file of features, a dataset that is made from it.
        on_the_hub: for each encoder that is downloaded, a dataset that it encodes.
    """

    def __init__(self, products: Products, files: DataFiles) -> None:
        """Takes the products of an experiment, and the files of its datasets."""
        self._products, self.files = products, files
        self._datasets = products.experiment.settings.datasets
        self.source_of_file = {entry.file: source for source, entry in files.catalogue.items()}
        self.encoded = {
            Path(file).stem: name for name in self._datasets for file in self.encoded_files(name)
        }
        self.on_the_hub = {
            _encoder_key(self._datasets[name]): self._datasets[name]
            for name in self.encoded.values()
            if not self.local_encoder(name)
        }

    def entry(self, file: str) -> Entry:
        """The catalogue's entry of a file."""
        return self.files.catalogue[self.source_of_file[file]]

    def raw_files(self, dataset: str) -> list[str]:
        """The files that a dataset is made from; none if it is made from features."""
        return [] if self._datasets[dataset].encoder else self.files.of(dataset)

    def encoded_files(self, dataset: str) -> list[str]:
        """The features that a dataset is made from, which experiments with the same share."""
        return [
            f"{FEATURES}/{Path(features.path).name}"
            for features in self._products.features(dataset)
        ]

    def local_encoder(self, dataset: str) -> str | None:
        """The folder or package of a dataset's encoder; None if it is on the hub."""
        name = self._datasets[dataset].encoder or ""
        place = self.files.located(name)
        return place if Path(place).is_dir() or name in PACKAGED_ENCODERS else None

    def downloaded_encoder(self, dataset: str) -> list[str]:
        """The file that says where the downloaded encoder of a dataset is; none if it is local."""
        if self.local_encoder(dataset):
            return []
        return [f"{ENCODERS}/{_encoder_key(self._datasets[dataset])}.json"]


def _encoder_key(dataset: Dataset) -> str:
    """A file name for an encoder at a revision."""
    revision = f"-{dataset.encoder_revision[:8]}" if dataset.encoder_revision else ""
    return re.sub("[^A-Za-z0-9._-]", "--", dataset.encoder or "") + revision
