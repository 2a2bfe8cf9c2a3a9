"""The encoded records of a source, and the file that holds them."""

import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from dpcanary.datasets.source import Source
from dpcanary.encoders.extraction import Encoder, extract_features
from dpcanary.encoders.folders import EncoderFolder
from dpcanary.encoders.stage import FeaturesStage
from dpcanary.files import Arrays, write_arrays

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
