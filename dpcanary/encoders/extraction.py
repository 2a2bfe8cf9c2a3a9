"""Encodes records in batches, with the encoder of their kind."""

import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.datasets.source import Source
from dpcanary.encoders.folders import EncoderFolder
from dpcanary.encoders.models import ImageEncoder, TextEncoder
from dpcanary.encoders.settings import FeaturesStage
from dpcanary.errors import InputError
from dpcanary.files import Arrays, write_arrays

Encoder = ImageEncoder | TextEncoder
# The files that show which kind of records an encoder reads.
_FILES_OF_KIND = {
    "images": ("preprocessor_config.json", "processor_config.json"),
    "texts": ("modules.json",),
}


def load_encoder(found: EncoderFolder, records: NDArray[Any], *, device: torch.device) -> Encoder:
    """Loads the encoder for records: images (uint8, shape (n, C, H, W)), or texts (shape (n,))."""
    if records.dtype.kind == "U":
        kind = "texts"
    elif records.ndim == 4 and records.dtype == np.uint8:
        kind = "images"
    else:
        raise InputError(
            "an encoder takes texts, or images as bytes (uint8, records x channels x height x"
            f" width); these records are {records.dtype} of shape {records.shape}: drop the"
            " dataset's encoder"
        )
    reads = [
        name
        for name, files in _FILES_OF_KIND.items()
        if any((found.folder / file).is_file() for file in files)
    ]
    if kind not in reads:
        raise InputError(
            f"encoder {found.name} reads {' and '.join(reads) or 'neither images nor texts'}, and"
            f" the records are {kind}; a model of images has a preprocessor_config.json, one of"
            " texts is a sentence-transformers folder with a modules.json"
        )
    if kind == "images":
        return ImageEncoder(found, num_channels=records.shape[1], device=device)
    return TextEncoder(found, device=device)


def extract_features(
    encoder: Encoder,
    records: NDArray[Any],
    *,
    batch_size: int | None = None,
    num_threads: int = 1,
    on_progress: Callable[[int], object] = lambda _: None,
) -> NDArray[np.float32]:
    """Features of shape (n, F). The batches that records are split into affect the rounding."""

    def encoded(batch: NDArray[np.int64]) -> torch.Tensor:
        """Features, left on the encoder's device so that no thread waits for a GPU."""
        with torch.inference_mode():  # holds for one thread
            return encoder(records[batch])

    order = encoder.order(records)
    size = batch_size or encoder.batch_size
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    parts = []
    with _torch_settings(), ThreadPoolExecutor(num_threads) as pool:
        for part in pool.map(encoded, batches):
            parts.append(part)
            on_progress(len(part))
    in_order = torch.cat(parts).cpu().numpy()
    features = np.empty_like(in_order)
    features[order] = in_order
    bad = ~np.isfinite(features).all(axis=1)
    if bad.any():
        raise InputError(
            f"the encoder gives NaN or infinite features, first for record {np.argmax(bad)}"
            f" ({np.sum(bad)} such records): are its weights damaged?"
        )
    return features


@contextmanager
def _torch_settings() -> Iterator[None]:
    """One thread per operation, since the threads of the pool already share the work.

    On a GPU, convolutions are in float32, whose mantissa PyTorch would round to 10 bits by default.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.backends.cudnn.flags(allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)


def encode_source(
    source: Source, encoder: Encoder, *, num_threads: int, on_progress: Callable[[int], object]
) -> Arrays:
    """`features` and `labels` of a source, and `test_features` and `test_labels` of its test part.

    The other arguments and the errors are those of `extract_features`.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for prefix, records in (("", source.training), ("test_", source.test)):
        if records is not None:
            arrays[f"{prefix}features"] = extract_features(
                encoder, records.features, num_threads=num_threads, on_progress=on_progress
            )
            arrays[f"{prefix}labels"] = records.labels
    return arrays


def write_features(
    path: Path,
    arrays: Arrays,
    *,
    stage: FeaturesStage,
    found: EncoderFolder,
    commit: str | None,
    device: torch.device,
    seconds: float,
    origin: str = "",
) -> None:
    """Writes encoded records, with what made them; the commit is that of a downloaded encoder."""
    packages = ("numpy", "pillow", "sentence-transformers", "tokenizers", "torch", "transformers")
    header = {
        "settings": stage.model_dump(mode="json"),
        "encoder": {"name": stage.encoder, "commit": commit, "weights": found.weights},
        "device": str(device),
        "seconds": seconds,
        "software": {
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
    }
    write_arrays(path, header=header, arrays=arrays, origin=origin)
