"""Makes a release of an experiment: its scores or shards, with a config that runs from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpcanary.core.files import read_arrays, sha256_of_file, write_text
from dpcanary.core.provenance import check_origin, origins_in
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment, read_config
from dpcanary.experiment.experiment_config import Experiment, read_experiment
from dpcanary.experiment.products import Products
from dpcanary.experiment.release import Released, write_release
from dpcanary.experiment.results_lock import locked
from dpcanary.training.training_settings import Sampling

# Keys that say where and on what an experiment was run; nothing depends on them.
_OF_THE_MACHINE = ("data_folder", "device")
_HEADER = """\
# Observations of experiment {experiment}, released: nothing is trained, and no data are needed.
# Run it in the folder of the archive: dpcanary run {config}
"""


@dataclass(frozen=True)
class MadeRelease:
    """A release that was made.

    Attributes:
        archive: its path.
        config: the path of a config that runs from it.
        sha256: of the archive.
        bytes: its size.
        files: that it holds, without its manifest and its config.
    """

    archive: Path
    config: Path
    sha256: str
    bytes: int
    files: int


def release_results(
    results: Path, *, observations: Released = Released.SCORES, output: Path | None = None
) -> MadeRelease:
    """Writes an archive of what training has left, and beside it a config that runs from it.

    The same results give the same archive, byte by byte.

    Args:
        results: the folder of an experiment, such as `results/demo`.
        observations: what the archive holds.
        output: the archive; by default `<experiment>.zip` in the working directory.

    Raises:
        InputError: if the experiment is not finished, a file is damaged or of another config, or
            the output is not that of a release.
    """
    experiment = read_experiment(results / "experiment.json")  # before a folder is made for a lock
    with locked(results.resolve()):
        name = experiment.settings.experiment
        archive = output or Path(f"{name}.zip")
        config = _config_beside(archive)
        products = Products(experiment)
        products.check_summary(results / "summary.tsv")
        origins = products.of_release(observations)
        files = {path: results / path for path in origins}
        for path, file in files.items():
            _check(file, origins[path])
        write_release(
            archive,
            experiment=name,
            holds=observations,
            config=released_config(experiment, archive=f"{name}.zip", config="config.yaml"),
            files=files,
            origins=origins,
        )
    sha256 = sha256_of_file(archive)
    text = released_config(experiment, archive=archive.name, config=config.name, sha256=sha256)
    write_text(config, text)
    return MadeRelease(archive, config, sha256, archive.stat().st_size, len(files))


def released_config(
    experiment: Experiment, *, archive: str, config: str, sha256: str | None = None
) -> str:
    """The text of a config that runs an experiment from an archive of its observations.

    Args:
        experiment: with the hashes of its data, on which origins depend.
        archive: its path.
        config: the name of the config's file.
        sha256: of the archive; None if it is not known yet.
    """
    # What is left out has its default.
    resolved: dict[str, Any] = experiment.model_dump(mode="json", exclude_defaults=True)
    for name, audit in experiment.audits.items():
        if audit.sampling is Sampling.POISSON:  # its rate must be given, the default's value, too
            resolved["audits"][name]["sample_rate"] = audit.sample_rate
    settings = resolved["settings"]
    for key in _OF_THE_MACHINE:
        settings.pop(key, None)
    release_keys = {"observations": "released", "archive": archive, "archive_sha256": sha256}
    experiment_name = settings.pop("experiment")
    settings = {key: value for key, value in settings.items() if key not in release_keys}
    filled_keys = {key: value for key, value in release_keys.items() if value is not None}
    resolved["settings"] = {"experiment": experiment_name, **filled_keys, **settings}
    header = _HEADER.format(experiment=experiment_name, config=config)
    return header + yaml.safe_dump(resolved, sort_keys=False, default_flow_style=None, width=100)


def _config_beside(archive: Path) -> Path:
    """The path of the config of a release; that of another config must not be overwritten."""
    if archive.suffix != ".zip":
        raise InputError(f"output {archive}: the name of a release ends with .zip")
    config = archive.with_suffix(".yaml")
    if config.exists() and not parse_experiment(read_config(config)).settings.is_released:
        raise InputError(
            f"{config} is there, and is not the config of a release: give another name by --output"
        )
    return config


def _check(file: Path, origin: str) -> None:
    """A file is whole, and is the one of the config."""
    [recorded] = origins_in(file)
    check_origin(file, recorded, origin)
    if file.suffix == ".npz":
        read_arrays(file)
