"""Where the records of datasets come from: downloads, or local files."""

import re
from difflib import get_close_matches
from pathlib import Path

from dpcanary.datasets.catalogue import Entry
from dpcanary.datasets.source import KNOWN_SOURCES
from dpcanary.encoders.settings import PACKAGED_ENCODERS
from dpcanary.errors import InputError
from dpcanary.settings.experiment import Dataset
from dpcanary.settings.products import Products

# All experiments of a folder share these: nothing here depends on an experiment's audits.
DOWNLOADS = "resources/downloads"
FEATURES = "resources/features"
ENCODERS = "resources/encoders"
# Hashes of downloads whose hash was unknown before the first download. Users commit this file.
LOCK = "downloads.lock.json"


class SourceRules:
    """Files and settings for the rules of datasets.

    Attributes:
        source_of_file: for each file that can be downloaded, its source.
        encoded: for each file of features, a dataset that is made from it.
        on_the_hub: for each encoder that is downloaded, a dataset that it encodes.
    """

    def __init__(
        self, products: Products, catalogue: dict[str, Entry], data_folder: str | None
    ) -> None:
        """Takes the products of an experiment, all downloads, and the folder of local copies."""
        self._products, self._catalogue = products, catalogue
        self._data_folder = Path(data_folder or ".")
        self._datasets = products.experiment.settings.datasets
        self.source_of_file = {entry.file: source for source, entry in catalogue.items()}
        self.encoded = {
            Path(file).stem: name for name in self._datasets for file in self.encoded_files(name)
        }
        self.on_the_hub = {
            _encoder_key(self._datasets[name]): self._datasets[name]
            for name in self.encoded.values()
            if not self.local_encoder(name)
        }

    def check_local_files(self) -> None:
        """Looks for all files that the config names.

        Snakemake asks for them only where it must read them: results of another source would stand
        under the name of one that does not exist.
        """
        for dataset, settings in self._datasets.items():
            if not settings.files and settings.source in KNOWN_SOURCES:
                continue
            for file in map(Path, self.source_files(dataset)):
                where = f"datasets.{dataset}: {file}"
                try:
                    if not file.is_file():
                        kind = "is no file" if file.exists() else "does not exist"
                        raise InputError(
                            f"{where} {kind}, looked up from {Path.cwd()}{_similar(file)}"
                        )
                except OSError as error:
                    raise InputError(f"{where} cannot be read: {error.strerror}") from None

    def entry(self, file: str) -> Entry:
        """The catalogue's entry of a file."""
        return self._catalogue[self.source_of_file[file]]

    def source_files(self, dataset: str) -> list[str]:
        """The files that a dataset is read from; none where it is generated."""
        settings = self._datasets[dataset]
        if settings.files:
            return [self._located(file) for file in settings.files]
        if settings.source in self._catalogue:
            return [f"{DOWNLOADS}/{self._catalogue[settings.source].file}"]
        return [] if settings.is_generated else [settings.source]

    def raw_files(self, dataset: str) -> list[str]:
        """The files that a dataset is made from; none if it is made from features."""
        return [] if self._datasets[dataset].encoder else self.source_files(dataset)

    def encoded_files(self, dataset: str) -> list[str]:
        """The features that a dataset is made from, which experiments with the same share."""
        return [
            f"{FEATURES}/{Path(features.path).name}"
            for features in self._products.features(dataset)
        ]

    def local_encoder(self, dataset: str) -> str | None:
        """The folder or package of a dataset's encoder; None if it is on the hub."""
        name = self._datasets[dataset].encoder or ""
        place = self._located(name)
        return place if Path(place).is_dir() or name in PACKAGED_ENCODERS else None

    def downloaded_encoder(self, dataset: str) -> list[str]:
        """The file that says where the downloaded encoder of a dataset is; none if it is local."""
        if self.local_encoder(dataset):
            return []
        return [f"{ENCODERS}/{_encoder_key(self._datasets[dataset])}.json"]

    def _located(self, name: str) -> str:
        """The path in the data folder if it exists there, else the path as it is."""
        inside = self._data_folder / name
        return str(inside) if inside.exists() else name


def _similar(missing: Path) -> str:
    """The file that may be meant, in words."""
    folder = missing.parent
    known = [one.name for one in folder.iterdir()] if folder.is_dir() else []
    close = get_close_matches(missing.name, known, n=1, cutoff=0.7)
    return f"; did you mean {folder / close[0]}?" if close else ""


def _encoder_key(dataset: Dataset) -> str:
    """A file name for an encoder at a revision."""
    revision = f"-{dataset.encoder_revision[:8]}" if dataset.encoder_revision else ""
    return re.sub("[^A-Za-z0-9._-]", "--", dataset.encoder or "") + revision
