"""Where the records of datasets come from: downloads, local files, a user's own file."""

import re
from pathlib import Path

from dpcanary.datasets.catalogue import Entry
from dpcanary.encoders.options import PACKAGED_ENCODERS
from dpcanary.encoders.stage import FeaturesStage
from dpcanary.files import sha256_of_text
from dpcanary.settings.dataset import Dataset
from dpcanary.settings.experiment import Experiment

# Shared by all experiments of a folder: nothing here depends on an experiment's audits.
DOWNLOADS = "resources/downloads"
FEATURES = "resources/features"
ENCODERS = "resources/encoders"
# What was seen of a download whose hash nobody could state beforehand; to be committed.
LOCK = "downloads.lock.json"


class SourceRules:
    """What the rules of datasets ask.

    Attributes:
        source_of_file: for each file that can be downloaded, its source.
        encoded: for each file of features, a dataset that is cut from it.
        on_the_hub: for each encoder that is downloaded, a dataset that it encodes.
    """

    def __init__(
        self, experiment: Experiment, catalogue: dict[str, Entry], data_folder: str | None
    ) -> None:
        """Takes an experiment, the catalogue of downloads, and the folder of local copies."""
        self._experiment, self._catalogue = experiment, catalogue
        self.data_folder = data_folder
        self.source_of_file = {entry.file: source for source, entry in catalogue.items()}
        datasets = experiment.settings.datasets
        encoded = [name for name, dataset in datasets.items() if dataset.encoder]
        self.encoded = {Path(self.features_file(name)).stem: name for name in encoded}
        self.on_the_hub = {
            self._encoder_key(datasets[name]): datasets[name]
            for name in self.encoded.values()
            if not self.local_encoder(name)
        }

    def entry(self, file: str) -> Entry:
        """The catalogue's entry of a file."""
        return self._catalogue[self.source_of_file[file]]

    def source_files(self, dataset: str) -> list[str]:
        """The files that a dataset is read from; none where it is generated."""
        settings = self._dataset(dataset)
        if settings.files:
            return [self._located(file) for file in settings.files]
        if settings.source in self._catalogue:
            return [f"{DOWNLOADS}/{self._catalogue[settings.source].file}"]
        return [] if settings.is_generated else [settings.source]

    def raw_files(self, dataset: str) -> list[str]:
        """The files of a dataset whose records are cut as they are."""
        return [] if self._dataset(dataset).encoder else self.source_files(dataset)

    def features_stage(self, dataset: str) -> FeaturesStage:
        """What is encoded, and by which encoder."""
        return self._experiment.dataset_stage(FeaturesStage, dataset=dataset)

    def features_file(self, dataset: str) -> str:
        """The encoded records of a dataset, which all experiments with the same ones share."""
        settings = self._dataset(dataset)
        known = [self.features_stage(dataset).to_json(), *settings.files]
        return f"{FEATURES}/{settings.source}-{sha256_of_text(' '.join(known))[:8]}.npz"

    def encoded_files(self, dataset: str) -> list[str]:
        """The features that a dataset is cut from, if it is encoded."""
        return [self.features_file(dataset)] if self._dataset(dataset).encoder else []

    def local_encoder(self, dataset: str) -> str | None:
        """The folder or package of a dataset's encoder; None where it is on the hub."""
        name = self._dataset(dataset).encoder or ""
        place = self._located(name)
        return place if Path(place).is_dir() or name in PACKAGED_ENCODERS else None

    def downloaded_encoder(self, dataset: str) -> list[str]:
        """The file that says where a dataset's encoder from the hub is."""
        if self.local_encoder(dataset):
            return []
        return [f"{ENCODERS}/{self._encoder_key(self._dataset(dataset))}.json"]

    def _dataset(self, name: str) -> Dataset:
        return self._experiment.settings.datasets[name]

    def _located(self, name: str) -> str:
        """A path in the data folder if there is something, else as it is."""
        inside = Path(self.data_folder or ".") / name
        return str(inside) if inside.exists() else name

    @staticmethod
    def _encoder_key(dataset: Dataset) -> str:
        """A file's name for an encoder at a revision."""
        revision = f"-{dataset.encoder_revision[:8]}" if dataset.encoder_revision else ""
        return re.sub("[^A-Za-z0-9._-]", "--", dataset.encoder or "") + revision
