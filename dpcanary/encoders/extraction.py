"""Records in, features out: the encoder of their kind, in batches."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.encoders.folders import EncoderFolder
from dpcanary.errors import InputError

Inputs = NDArray[Any]
Kind = Literal["images", "texts"]


class Encoder(Protocol):
    """A frozen model; several threads may call it at once.

    Attributes:
        batch_size: records that are fastest together.
    """

    batch_size: int

    def order(self, records: Inputs, /) -> NDArray[np.int64]:
        """In which order records are encoded fastest; shape (n,)."""

    def __call__(self, records: Inputs, /) -> torch.Tensor:
        """Features of one batch, float32 of shape (n, F), on the encoder's device."""


def load_encoder(found: EncoderFolder, records: Inputs, *, device: torch.device) -> Encoder:
    """Loads the encoder of these records' kind.

    Args:
        found: where it is.
        records: images, uint8 of shape (n, C, H, W), or texts, Unicode of shape (n,).
        device: where it computes.

    Raises:
        InputError: if the records are neither, or the folder holds no encoder of their kind.
    """
    kind = _kind_of(records)
    if kind not in (reads := _readable_by(found)):
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
    """Encodes records; how they are cut into batches matters to rounding alone.

    Args:
        encoder: from `load_encoder`.
        records: n of the encoder's kind, at least one.
        batch_size: records at once, per thread; by default the encoder's choice.
        num_threads: threads of the host, each of which encodes batches of its own.
        on_progress: told the number of records of each batch that is done.

    Returns:
        Shape (n, F), in the records' order, in the unit of the encoder's last layer.

    Raises:
        InputError: if a feature is NaN or infinite.
    """
    order = encoder.order(records)
    size = batch_size or encoder.batch_size
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    parts = []
    with _torch_set_up(), ThreadPoolExecutor(num_threads) as pool:
        for part in pool.map(lambda batch: _encoded(encoder, records[batch]), batches):
            parts.append(part)
            on_progress(len(part))
    encoded = torch.cat(parts).cpu().numpy()
    features = np.empty_like(encoded)
    features[order] = encoded
    _check_finite(features)
    return features


def _encoded(encoder: Encoder, batch: Inputs) -> torch.Tensor:
    """A batch's features, on the encoder's device: nobody waits for a GPU before the end."""
    with torch.inference_mode():  # holds for one thread
        return encoder(batch)


@contextmanager
def _torch_set_up() -> Iterator[None]:
    """PyTorch's own threads rest: each worker encodes other records, and none waits for another.

    On a GPU, convolutions are in float32, which PyTorch would round to 10 bits by default.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.backends.cudnn.flags(allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)


def _kind_of(records: Inputs) -> Kind:
    if records.dtype.kind == "U":
        return "texts"
    if records.ndim == 4 and records.dtype == np.uint8:
        return "images"
    raise InputError(
        "an encoder takes texts, or images as bytes (uint8, records x channels x height x width);"
        f" these records are {records.dtype} of shape {records.shape}: drop the dataset's encoder"
    )


def _readable_by(found: EncoderFolder) -> list[Kind]:
    files: dict[Kind, tuple[str, ...]] = {
        "images": ("preprocessor_config.json", "processor_config.json"),
        "texts": ("modules.json",),
    }
    return [
        kind
        for kind, names in files.items()
        if any((found.folder / name).is_file() for name in names)
    ]


def _check_finite(features: NDArray[np.float32]) -> None:
    bad = ~np.isfinite(features).all(axis=1)
    if bad.any():
        raise InputError(
            f"the encoder gives NaN or infinite features, first for record {int(np.argmax(bad))}"
            f" ({int(bad.sum())} such records): are its weights damaged?"
        )
