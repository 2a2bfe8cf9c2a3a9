"""Encodes records in batches, with the encoder of their kind."""

import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.datasets.source import Source
from dpcanary.encoders.folders import EncoderFolder
from dpcanary.encoders.settings import FeaturesStage
from dpcanary.errors import InputError
from dpcanary.files import Arrays, write_arrays

Inputs = NDArray[Any]

# The files that show which kind of records an encoder reads.
_FILES_OF_KIND = {
    "images": ("preprocessor_config.json", "processor_config.json"),
    "texts": ("modules.json",),
}


class Encoder(Protocol):
    """A frozen model; several threads may call it at once.

    Attributes:
        batch_size: the fastest number of records per batch.
    """

    batch_size: int

    def order(self, records: Inputs, /) -> NDArray[np.int64]:
        """The order in which records are encoded fastest, as indices of shape (n,)."""

    def __call__(self, records: Inputs, /) -> torch.Tensor:
        """Features of one batch, float32 of shape (n, F), on the encoder's device."""


def load_encoder(found: EncoderFolder, records: Inputs, *, device: torch.device) -> Encoder:
    """Loads the encoder for these records.

    Args:
        found: the encoder's folder.
        records: images, uint8 of shape (n, C, H, W), or texts, Unicode of shape (n,).
        device: where it computes.

    Raises:
        InputError: if the records are neither, or the folder holds no encoder of their kind.
    """
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
        from dpcanary.encoders.images import ImageEncoder

        return ImageEncoder(found, num_channels=records.shape[1], device=device)
    from dpcanary.encoders.texts import TextEncoder

    return TextEncoder(found, device=device)


def extract_features(
    encoder: Encoder,
    records: Inputs,
    *,
    batch_size: int | None = None,
    num_threads: int = 1,
    on_progress: Callable[[int], object] = lambda _: None,
) -> NDArray[np.float32]:
    """Encodes records. The batches they are split into affect the rounding alone.

    Args:
        encoder: from `load_encoder`.
        records: at least one record of the encoder's kind.
        batch_size: records per batch; by default the encoder's choice.
        num_threads: threads of the CPU, each of which encodes other batches.
        on_progress: called with the number of records of each finished batch.

    Returns:
        Shape (n, F), in the records' order, in the unit of the encoder's last layer.

    Raises:
        InputError: if a feature is NaN or infinite.
    """

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


_SOFTWARE = ("numpy", "pillow", "sentence-transformers", "tokenizers", "torch", "transformers")


def encode_source(
    source: Source, encoder: Encoder, *, num_threads: int, on_progress: Callable[[int], object]
) -> Arrays:
    """Encodes the records of a source and of its test part.

    Args:
        source: images or texts.
        encoder: from `load_encoder`.
        num_threads: threads of the CPU.
        on_progress: called with the number of records of each finished batch.

    Returns:
        `features` and `labels`, and `test_features` and `test_labels` if there is a test part.

    Raises:
        InputError: if a feature is not finite.
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
    """Writes encoded records, with what made them.

    Args:
        path: ends in .npz.
        arrays: from `encode_source`.
        stage: the settings.
        found: the encoder's folder.
        commit: of an encoder that was downloaded.
        device: where the encoder computed.
        seconds: how long encoding took.
        origin: as in `files.write_arrays`.
    """
    versions = {name: version(name) for name in _SOFTWARE}
    header = {
        "settings": stage.model_dump(mode="json"),
        "encoder": {"name": stage.encoder, "commit": commit, "weights": found.weights},
        "device": str(device),
        "seconds": seconds,
        "software": {"python": platform.python_version(), **versions},
    }
    write_arrays(path, header=header, arrays=arrays, origin=origin)
