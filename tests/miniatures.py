"""The paper's experiments cut down to seconds: tiny files in the official formats, few runs."""

import io
import json
import tarfile
import zipfile
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# Every sweep keeps the ends of its lists; these keys get values of their own.
AUDIT = {"num_runs": 8, "num_repeats": 2, "runs_per_shard": 16}
_DROPPED = ("max_records", "encoder_revision")
_ALONG = ("max_grad_norm", "num_steps", "learning_rate")
DATASET = {"num_auxiliary": 20, "num_test": 10}
FIGURE_RUNS = [4, 8]
LONGEST, EVERY = 20, 10


def miniature(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Shrink a config to tiny data from a folder, short sweeps, few steps and runs.

    Sweeps of ResNet-18, which would take minutes, are left out.
    """
    datasets = config.get("datasets", {})
    small = {
        name: audit for name, audit in config["audits"].items() if audit.get("model") != "resnet18"
    }
    audits = {name: _tiny_audit(audit) for name, audit in small.items()}
    if any("batches_per_pass" in audit for audit in audits.values()):
        for audit in audits.values():  # as in the config, of one batch size
            key, size = ("batches_per_pass", EVERY), ("sample_rate", 1 / EVERY)
            audit.update([key if "batches_per_pass" in audit else size])
    figures = {
        name: _tiny_figure(figure, small)
        for name, figure in config["figures"].items()
        if "sweeps" not in figure or small.keys() & {*figure["sweeps"]}
    }
    tiny = {name: _tiny_dataset(dataset, folder) for name, dataset in datasets.items()}
    return {**config, "datasets": tiny, "audits": audits, "figures": figures, "device": "cpu"}


def _tiny_dataset(dataset: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    source = dataset["source"]
    tiny = {key: value for key, value in dataset.items() if key not in _DROPPED} | DATASET
    if source in FILES:
        tiny["files"] = [str(FILES[source](folder))]
    if "encoder" in dataset:
        tiny["encoder"] = str(folder / ("vit" if source == "cifar10" else "bert"))
    if source == "purchase100_synthetic":
        tiny["max_records"] = 300
    records = 40 if dataset.get("balanced", True) else 60 if source == "cifar10" else 150
    return {**tiny, "num_records": records}


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) else value


def _ends(value: object) -> object:
    return [value[0], value[-1]] if isinstance(value, list) and len(value) > 1 else value


def _tiny_audit(audit: Mapping[str, Any]) -> dict[str, Any]:
    known_batches = audit.get("sampling") == "fixed" and "dataset" in audit
    cut = _first if known_batches else _ends  # those configs have many sweeps
    tiny = {key: value if key == "hidden_sizes" else cut(value) for key, value in audit.items()}
    tiny |= {**AUDIT, "canary": _ends(audit["canary"])}
    if known_batches:
        period = {1: 1, 5: 2, 25: 5}[audit["canary_period"]]
        tiny |= {"batch_size": 16, "canary_period": period, "num_repeats": 1}
    elif any(isinstance(audit.get(key), list) for key in _ALONG):
        tiny["sample_rate"] = _first(tiny["sample_rate"])  # enough for a figure along a setting
    tiny["num_steps"] = [EVERY, LONGEST] if isinstance(tiny["num_steps"], list) else LONGEST
    if audit.get("pretraining"):
        tiny["pretraining"] = {**audit["pretraining"], "num_steps": 3, "batch_size": 8}
    smaller = {"record_every": EVERY, "num_slots": 6, "hidden_sizes": [4]}
    return tiny | {key: value for key, value in smaller.items() if key in tiny}


def _tiny_figure(figure: Mapping[str, Any], audits: Container[str]) -> dict[str, Any]:
    tiny = {key: _ends(value) for key, value in figure.items()}
    if "sweeps" in figure:
        tiny["sweeps"] = _ends([sweep for sweep in figure["sweeps"] if sweep in audits])
    if figure["kind"] in ("epsilon_by_runs", "models_trained"):
        tiny["num_runs"] = FIGURE_RUNS
    if figure["kind"] == "adjacency_ratio":
        tiny["num_steps"], tiny["noise_multipliers"] = [EVERY, LONGEST], [2.0, 8.0]
    return tiny


def cifar10(folder: Path) -> Path:
    """The binary archive: a label byte and 3,072 pixel bytes a record, ten classes in turn."""
    rng, labels = np.random.default_rng(0), np.arange(20, dtype=np.uint8)[:, None] % 10
    members = {}
    for name in (*(f"data_batch_{index}" for index in range(1, 6)), "test_batch"):
        pixels = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
        members[f"cifar-10-batches-bin/{name}.bin"] = np.hstack([labels, pixels]).tobytes()
    return _tar(folder / "cifar-10-binary.tar.gz", members)


def sst2(folder: Path) -> Path:
    """GLUE's archive: tab-separated sentences and labels with a header."""
    words = ["good", "bad", "film", "plot", "dull", "bright"]
    rng = np.random.default_rng(0)
    path = folder / "SST-2.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, count in (("train", 120), ("dev", 20)):
            rows = [f"{' '.join(rng.choice(words, 4))} \t{index % 2}" for index in range(count)]
            archive.writestr(f"SST-2/{name}.tsv", "\n".join(["sentence\tlabel", *rows, ""]))
    return path


def purchase100(folder: Path) -> Path:
    """The published archive: a label from 1 to 100, then 600 bits."""
    rng = np.random.default_rng(0)
    rows = [",".join(map(str, [index % 100 + 1, *rng.integers(0, 2, 600)])) for index in range(300)]
    content = "\n".join([*rows, ""]).encode()
    return _tar(folder / "dataset_purchase.tgz", {"dataset_purchase": content})


def california_housing(folder: Path) -> Path:
    """scikit-learn's archive: nine numbers a line."""
    numbers = np.random.default_rng(0).uniform(1, 9, (300, 9))
    content = "".join(",".join(f"{value:.3f}" for value in row) + "\n" for row in numbers).encode()
    return _tar(folder / "cal_housing.tgz", {"CaliforniaHousing/cal_housing.data": content})


def _tar(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


FILES = {builder.__name__: builder for builder in (california_housing, cifar10, sst2, purchase100)}


def write_encoders(folder: Path) -> None:
    """A vision transformer and a sentence encoder of random weights, as the libraries save them."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizer, ViTConfig, ViTModel

    torch.manual_seed(0)
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    shape = {"hidden_size": 16, "intermediate_size": 16, **layers}
    ViTModel(ViTConfig(image_size=32, patch_size=16, **shape)).save_pretrained(folder / "vit")
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    processor |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "vit/preprocessor_config.json").write_text(json.dumps(processor))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "plot"]
    (folder / "words").mkdir()
    (folder / "words/vocab.txt").write_text("\n".join(words))
    BertModel(BertConfig(vocab_size=len(words), **shape)).save_pretrained(folder / "words")
    BertTokenizer(str(folder / "words/vocab.txt")).save_pretrained(folder / "words")
    transformer = Transformer(str(folder / "words"))
    pooling = Pooling(transformer.get_embedding_dimension())
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(folder / "bert"))
