"""The files that a config's datasets are read from: looked for, and known by their hashes."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from dpcanary.data.dataset_settings import DatasetStage
from dpcanary.data.sources import load_records
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.data_files import DataFiles
from dpcanary.experiment.products import Products
from dpcanary.workflow.record_files import SourceRules

TABLE = "a,b,label\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n"
SHA256 = hashlib.sha256(TABLE.encode()).hexdigest()
AUDIT = {
    "dataset": "mine", "canary": "gradient", "sample_rate": 1.0, "num_steps": 2,
    "noise_multiplier": 1.0, "num_runs": 8,
}  # fmt: skip


def experiment(**dataset):
    datasets = {"mine": {"num_records": 2, **dataset}}
    config = {"experiment": "e", "delta": 1e-5, "datasets": datasets, "audits": {"one": AUDIT}}
    return parse_experiment(config)


@pytest.fixture
def hashed_experiment(tmp_path):
    def read(**dataset):
        parsed = experiment(**{"source": "mine.csv", **dataset})
        return DataFiles(parsed.settings, folder=tmp_path).with_hashes(parsed)

    (tmp_path / "mine.csv").write_text(TABLE)
    return read


def test_a_files_hash_and_the_seed_are_settings_of_what_is_made(hashed_experiment, tmp_path):
    first = hashed_experiment()
    assert first.settings.datasets["mine"].sha256 == (SHA256,)
    assert first.dataset_stage(DatasetStage, dataset="mine").sha256 == (SHA256,)
    (tmp_path / "mine.csv").write_text(TABLE.replace("8", "9"))
    seeded = first.model_copy(update={"settings": first.settings.model_copy(update={"seed": 3})})
    origins = [
        Products(parsed).data("mine").origin for parsed in (first, hashed_experiment(), seeded)
    ]
    assert len({*origins}) == 3
    assert Products(seeded).data("mine").origin == origins[2]


def test_every_revision_of_an_encoder_has_a_file_of_its_own(tmp_path):
    files = []
    for revision in (None, "a" * 40, "b" * 40):
        parsed = experiment(source="cifar10", encoder="someone/vit", encoder_revision=revision)
        sources = SourceRules(Products(parsed), DataFiles(parsed.settings, folder=tmp_path))
        [file] = sources.downloaded_encoder("mine")
        [key] = sources.on_the_hub
        assert Path(file).name == f"{key}.json"
        files.append(file)
    assert len({*files}) == 3
    # A file of features is an argument of commands.
    source = tmp_path / "my texts; rm x.csv"
    source.write_text(TABLE)
    [features] = Products(experiment(source=str(source), encoder="someone/vit")).features("mine")
    assert re.fullmatch(r"features/my-texts--rm-x\.csv-\w{8}\.npz", features.path)


def test_a_file_of_another_hash_than_stated_is_refused(hashed_experiment, tmp_path, refuses):
    assert hashed_experiment(sha256=[SHA256]).settings.datasets["mine"].sha256 == (SHA256,)
    refuses(f"datasets.mine: .*mine.csv has sha256 {SHA256}", hashed_experiment, sha256=["0" * 64])
    refuses("1 files are read, and 2 hashes are given", hashed_experiment, sha256=[SHA256, SHA256])
    file = tmp_path / "mine.csv"
    stage = DatasetStage(source=str(file), num_records=2, seed=0, sha256=(SHA256,))
    assert len(load_records(stage, files=[file]).training) == 4
    file.write_text(TABLE.replace("8", "9"))
    refuses(r"mine.csv has sha256 .* must have", load_records, stage, files=[file])
    classes = DatasetStage(source="digits", num_records=2, seed=0, label_kind="numbers")
    refuses("source digits has classes; labels that are numbers", load_records, classes, files=[])


def test_downloads_have_the_hash_of_the_catalogue_and_other_files_their_own(
    hashed_experiment, tmp_path
):
    np.savez(tmp_path / "own.npz", images=np.zeros((2, 32, 32, 3), np.uint8), labels=[0, 1])
    digest = hashlib.sha256((tmp_path / "own.npz").read_bytes()).hexdigest()
    generated = experiment(source="digits")  # has no hash
    entry = DataFiles(generated.settings, folder=tmp_path).catalogue["cifar10"]
    assert hashed_experiment(source="cifar10").settings.datasets["mine"].sha256 == (entry.sha256,)
    own = hashed_experiment(source="cifar10", files=["own.npz"])
    assert own.settings.datasets["mine"].sha256 == (digest,)
    assert hashed_experiment(source="digits") == generated


def test_a_preparation_and_a_folder_are_files_of_a_dataset(tmp_path, refuses):
    """Their hashes are settings of what is made, and what is missing is named."""
    parsed = experiment(source="parts/", preparation="how.yaml")
    files = DataFiles(parsed.settings, folder=tmp_path)
    assert files.of("mine") == ["parts", "how.yaml"]
    (tmp_path / "parts/sub").mkdir(parents=True)
    (tmp_path / "parts/sub.csv").mkdir()
    (tmp_path / "how.yaml").write_text("columns: {}\n")
    origins = []
    for name in ("parts/sub/a.parquet", "parts/sub/b.parquet", "how.yaml"):
        (tmp_path / name).write_text(name)
        hashed = files.with_hashes(parsed)
        assert len(hashed.settings.datasets["mine"].sha256) == 2
        origins.append(Products(hashed).data("mine").origin)
    (tmp_path / "parts/sub/a.parquet").rename(tmp_path / "parts/c.parquet")
    origins.append(Products(files.with_hashes(parsed)).data("mine").origin)
    assert len({*origins}) == 4
    (tmp_path / "parts/.hidden").touch()
    assert Products(files.with_hashes(parsed)).data("mine").origin == origins[-1]
    files.check()
    (tmp_path / "how.yaml").unlink()
    refuses(r"datasets.mine: how.yaml does not exist", files.check)
    encoded = experiment(source="my/photos/", encoder="someone/vit", image_size=64)
    sources = SourceRules(Products(encoded), DataFiles(encoded.settings, folder=tmp_path))
    [features] = sources.encoded_files("mine")
    assert re.fullmatch(r"resources/features/photos-\w{8}\.npz", features)
    (tmp_path / "how.csv").touch()
    for source, message in [
        ("how.csv/", "how.csv is no folder"),
        ("absent/", "does not exist"),
        ("haw.csv", r"datasets.mine: haw.csv does not exist, .*did you mean .*how.csv"),
        ("parts/sub.csv", "sub.csv is no file"),
    ]:
        refuses(message, DataFiles(experiment(source=source).settings, folder=tmp_path).check)


def test_the_data_folder_goes_first(tmp_path, monkeypatch):
    for folder in ("data", ".", "stated"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "own.npz").touch()
    parsed = experiment(source="cifar10", files=["own.npz"])
    assert DataFiles(parsed.settings, folder=tmp_path).of("mine") == ["own.npz"]
    monkeypatch.setenv("DPCANARY_DATA", str(tmp_path / "data"))
    in_data = [str(tmp_path / "data/own.npz")]
    assert DataFiles(parsed.settings, folder=tmp_path).of("mine") == in_data
    stated = parsed.settings.model_copy(update={"data_folder": str(tmp_path / "stated")})
    files = DataFiles(stated, folder=tmp_path)  # what the config says goes before the environment
    assert files.of("mine") == [str(tmp_path / "stated/own.npz")]
