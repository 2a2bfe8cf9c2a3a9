"""The files that the datasets of a config are read from, and their hashes."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

from dpcanary.core.files import sha256_of_file, sha256_of_path
from dpcanary.core.installation import SNAKEFILE
from dpcanary.data.dataset_catalogue import Entry, read_catalogue
from dpcanary.data.record_source import KNOWN_SOURCES, check_hashes, own_files
from dpcanary.errors import InputError
from dpcanary.experiment.experiment_config import Experiment, Settings
from dpcanary.experiment.release import check_hash

# All experiments of a folder share what is downloaded.
DOWNLOADS = "resources/downloads"

_WRITES_PREPARATION = "; `dpcanary run` writes it, unless it only looks, as in a dry run"


class DataFiles:
    """Where the records of each dataset come from: downloads, or local files."""

    def __init__(self, settings: Settings, *, folder: Path | None = None) -> None:
        """Takes a config, and the folder from which its paths are looked up: by default this one.

        Raises:
            InputError: if the catalogue of downloads is damaged.
        """
        self._settings, self._datasets = settings, settings.datasets
        self._folder = folder or Path()
        self.data_folder = settings.data_folder or os.getenv("DPCANARY_DATA") or None

    @cached_property
    def catalogue(self) -> Mapping[str, Entry]:
        """Every file that can be downloaded, by source."""
        return read_catalogue(SNAKEFILE.parent / "config/datasets.yaml")

    @property
    def archive(self) -> Path | None:
        """The archive of released observations; None where runs are trained."""
        archive = self._settings.archive
        return None if archive is None else self._folder / self.located(archive)

    @cached_property
    def archive_sha256(self) -> str | None:
        """The hash of the archive, if there is one.

        Raises:
            InputError: if it is missing, or has another hash than the config says.
        """
        if self.archive is None:
            return None
        sha256 = sha256_of_file(self.archive)
        check_hash(self.archive, sha256, self._settings.archive_sha256 or sha256)
        return sha256

    def of(self, dataset: str) -> list[str]:
        """The files that a dataset is read from; none where it is generated."""
        settings = self._datasets[dataset]
        if settings.files:
            return [self.located(file) for file in settings.files]
        if settings.source in self.catalogue:
            return [f"{DOWNLOADS}/{self.catalogue[settings.source].file}"]
        if settings.is_generated:
            return []
        return [*map(str, own_files(settings.source, settings.preparation))]

    def located(self, name: str) -> str:
        """The path in the data folder if it exists there, else the path as it is."""
        inside = Path(self.data_folder or ".") / name
        return str(inside) if (self._folder / inside).exists() else name

    def check(self) -> None:
        """Looks for all files that the config names; for its archive alone where it has one.

        Snakemake asks for them only where it must read them: results of another source would stand
        under the name of one that does not exist.

        Raises:
            InputError: if one is missing, or if the archive has another hash than the config says.
        """
        if self.archive_sha256:
            return
        for dataset in self._datasets:
            for name in self._local(dataset):
                file, where = self._folder / name, f"datasets.{dataset}: {name}"
                try:
                    is_folder = name == self._folder_of(dataset)
                    if not (file.is_dir() if is_folder else file.is_file()):
                        kind = "is no folder" if is_folder else "is no file"
                        kind = kind if file.exists() else "does not exist"
                        is_written = name == self._datasets[dataset].preparation
                        raise InputError(
                            f"{where} {kind}, looked up from {self._folder.absolute()}"
                            f"{_similar(file, name)}"
                            f"{_WRITES_PREPARATION * is_written}"
                        )
                except OSError as error:
                    raise InputError(f"{where} cannot be read: {error.strerror}") from None

    def with_hashes(self, experiment: Experiment) -> Experiment:
        """The experiment, with the hashes that its files have, or must have.

        They are settings of what is read from the files, so that a file that changes is read again,
        and nothing that was made from the earlier one is taken for its result.

        Raises:
            InputError: if a file cannot be read, or has another hash than its dataset says.
        """
        if self.archive_sha256:  # data are not read: their hashes are what the config states
            hashes = {"archive_sha256": self.archive_sha256}
            settings = experiment.settings.model_copy(update=hashes)
            return experiment.model_copy(update={"settings": settings})
        datasets = {
            name: settings.model_copy(update={"sha256": self._hashes(name)})
            for name, settings in self._datasets.items()
        }
        settings = experiment.settings.model_copy(update={"datasets": datasets})
        return experiment.model_copy(update={"settings": settings})

    def _hashes(self, dataset: str) -> tuple[str, ...]:
        stated = self._datasets[dataset].sha256
        local = [self._folder / name for name in self._local(dataset)]
        if not local:
            entry = self.catalogue.get(self._datasets[dataset].source)
            return stated or ((entry.sha256,) if entry and entry.sha256 else ())
        if not all(file.exists() for file in local):  # in a module, another rule may make them
            return stated
        hashes = tuple(map(sha256_of_path, local))
        check_hashes(local, hashes, stated, where=f"datasets.{dataset}: ")
        return hashes

    def _folder_of(self, dataset: str) -> str | None:
        """The folder that a dataset is read from; None if it is read from files."""
        source = self._datasets[dataset].source
        return str(Path(source)) if source.endswith("/") else None

    def _local(self, dataset: str) -> list[str]:
        """The files of a dataset that the config names."""
        settings = self._datasets[dataset]
        return self.of(dataset) if settings.files or settings.source not in KNOWN_SOURCES else []


def _similar(missing: Path, name: str) -> str:
    """The file that may be meant, in words, as the config would name it."""
    folder = missing.parent
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    close = get_close_matches(missing.name, names, n=1, cutoff=0.7)
    return f"; did you mean {Path(name).parent / close[0]}?" if close else ""
