"""The features of a source: its records encoded, and the file of features."""

import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch

from dpcanary.datasets.source import Source
from dpcanary.encoders.extraction import extract_features, load_encoder
from dpcanary.encoders.folders import EncoderFolder
from dpcanary.encoders.stage import FeaturesStage
from dpcanary.files import write_arrays

_SOFTWARE = ("numpy", "pillow", "sentence-transformers", "tokenizers", "torch", "transformers")


class Bar(Protocol):
    """A progress bar."""

    def update(self, n: int) -> object:
        """Counts records that are done."""


@dataclass(frozen=True)
class Features:
    """Encoded records.

    Attributes:
        arrays: `features` and `labels`, and `test_features` and `test_labels` of a test part.
        seconds: how long encoding took.
    """

    arrays: dict[str, Any]
    seconds: float


def encode_source(
    source: Source,
    encoder: EncoderFolder,
    *,
    device: torch.device,
    num_threads: int,
    progress: Callable[[int, str], AbstractContextManager[Bar]],
) -> Features:
    """Encodes the records of a source, and its test part.

    Args:
        source: images or texts.
        encoder: where the encoder is.
        device: where it computes.
        num_threads: threads of the host.
        progress: makes a progress bar of some records.

    Raises:
        InputError: if the encoder does not read such records, or a feature is not finite.
    """
    start = time.perf_counter()
    model = load_encoder(encoder, source.training.features, device=device)
    parts = {"": source.training} | ({"test_": source.test} if source.test else {})
    arrays: dict[str, Any] = {}
    with progress(sum(map(len, parts.values())), "record") as bar:
        for prefix, records in parts.items():
            arrays[f"{prefix}features"] = extract_features(
                model, records.features, num_threads=num_threads, on_progress=bar.update
            )
            arrays[f"{prefix}labels"] = records.labels
    return Features(arrays, time.perf_counter() - start)


def write_features(
    path: Path,
    features: Features,
    *,
    stage: FeaturesStage,
    encoder: EncoderFolder,
    commit: str | None,
    device: torch.device,
) -> None:
    """Writes the features, with where they come from.

    Args:
        path: ends in .npz.
        features: to be written.
        stage: what was asked for.
        encoder: what encoded them.
        commit: of an encoder that was downloaded.
        device: where it computed.
    """
    versions = {name: version(name) for name in _SOFTWARE}
    header = {
        "settings": stage.model_dump(mode="json"),
        "encoder": {"name": stage.encoder, "commit": commit, "weights": encoder.weights},
        "device": str(device),
        "seconds": features.seconds,
        "software": {"python": platform.python_version(), **versions},
    }
    write_arrays(path, header=header, arrays=features.arrays)
