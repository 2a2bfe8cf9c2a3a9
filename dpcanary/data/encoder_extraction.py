"""Frozen encoders of images and of texts, and the encoding of records in batches.

Several threads may call an encoder at once.
"""

import copy
import json
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
from transformers import AutoImageProcessor, AutoModel, PreTrainedTokenizerBase

from dpcanary.core.devices import reproducible_convolutions
from dpcanary.core.files import Arrays, write_arrays
from dpcanary.data.encoder_folders import EncoderFolder, loading
from dpcanary.data.encoder_settings import FeaturesStage
from dpcanary.data.record_source import Source
from dpcanary.errors import InputError


class ImageEncoder:
    """A vision transformer (ViT, DeiT, ...); the feature is the class token after the last layer.

    Its processor resizes images on the CPU. An InputError says that the folder holds no such model,
    lacks weights, or reads another number of channels.
    """

    def __init__(self, encoder: EncoderFolder, *, num_channels: int, device: torch.device) -> None:
        with loading(encoder):
            self._processor = AutoImageProcessor.from_pretrained(
                encoder.folder, backend="pil", local_files_only=True, trust_remote_code=False
            )
            model, report = AutoModel.from_pretrained(
                encoder.folder,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        _check(encoder, model, report["missing_keys"], num_channels)
        self._model = model.to(device).eval()
        self._device = device
        self._scale, self._shift = (part.to(device) for part in _normalisation(self._processor))
        # Small batches fit the caches of a CPU; large ones fill a GPU.
        self.batch_size = 8 if device.type == "cpu" else 128

    def order(self, records: NDArray[Any]) -> NDArray[np.int64]:
        """The given order: every image takes equally long."""
        return np.arange(len(records))

    def __call__(self, images: NDArray[np.uint8]) -> torch.Tensor:
        """Class tokens, shape (n, F), of images of shape (n, C, H, W)."""
        tokens: torch.Tensor = self._model(pixel_values=self.pixels(images)).last_hidden_state
        return tokens[:, 0]

    def pixels(self, images: NDArray[np.uint8]) -> torch.Tensor:
        """The model's input for these images, shape (n, C, height, width).

        The processor resizes images to bytes. Its last step is linear and is done here, for the
        whole batch and on the device: the processor takes twice as long for it as for all the rest.
        """
        resized = self._processor(
            images=list(images),
            input_data_format="channels_first",
            do_rescale=False,
            do_normalize=False,
            return_tensors="pt",
        )["pixel_values"]
        if self._device.type == "cuda":  # then the copy need not wait for the batch before
            resized = resized.pin_memory()
        values = resized.to(self._device, non_blocking=True).to(torch.float32)
        return torch.addcmul(self._shift, values, self._scale)


def _normalisation(processor: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and shift of a byte, each of shape (C, 1, 1) or (1, 1, 1)."""
    factor = processor.rescale_factor if processor.do_rescale else 1.0
    mean, deviation = [0.0], [1.0]
    if processor.do_normalize:
        mean, deviation = processor.image_mean, processor.image_std
    divisor = torch.tensor(deviation, dtype=torch.float64).reshape(-1, 1, 1)
    shift = -torch.tensor(mean, dtype=torch.float64).reshape(-1, 1, 1) / divisor
    return (factor / divisor).float(), shift.float()


def _check(encoder: EncoderFolder, model: Any, missing: set[str], num_channels: int) -> None:
    # The pooler comes after the class token. It is often left out, and is not used here.
    lacking = sorted(name for name in missing if not name.startswith("pooler."))
    if lacking:
        raise InputError(
            f"encoder {encoder.name}: {encoder.folder} lacks {len(lacking)} of the model's weights,"
            f" such as {lacking[0]}: it is incomplete, or belongs to another model"
        )
    if not any("cls_token" in name for name, _ in model.named_parameters()):
        raise InputError(
            f"encoder {encoder.name} has no class token; use a vision transformer, such as"
            " google/vit-base-patch16-224-in21k"
        )
    expected = getattr(model.config, "num_channels", 3)
    if expected != num_channels:
        raise InputError(
            f"encoder {encoder.name} reads images of {expected} channels, and these have"
            f" {num_channels}"
        )


class TextEncoder:
    """A sentence transformer with its own pooling and normalisation.

    An InputError says that the folder holds no such model, or asks for code of its own.
    """

    def __init__(self, encoder: EncoderFolder, *, device: torch.device) -> None:
        from sentence_transformers import SentenceTransformer  # slow, and not used for images

        with loading(encoder):
            _check_modules(encoder)
            self._model = SentenceTransformer(
                str(encoder.folder),
                device=str(device),
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True, "dtype": torch.float32},
            )
            # Sets up the tokenizer, which must not happen in several threads at once.
            self._model.encode([""], show_progress_bar=False)
        self.batch_size = 32 if device.type == "cpu" else 256

    def order(self, records: NDArray[Any]) -> NDArray[np.int64]:
        """Longest first: the texts of a batch are padded to the longest of them."""
        tokenizer = self._model.tokenizer
        if not isinstance(tokenizer, PreTrainedTokenizerBase):  # a model with a table of words
            return np.argsort(-np.strings.str_len(records), kind="stable")
        counting = copy.deepcopy(tokenizer)  # `encode` has set up padding in the original
        tokens = counting(records.tolist(), truncation=True)["input_ids"]
        return np.argsort([-len(text) for text in tokens], kind="stable")

    def __call__(self, texts: NDArray[np.str_]) -> torch.Tensor:
        """Embeddings, shape (n, F), of texts of shape (n,); the model truncates long texts."""
        return self._model.encode(
            texts.tolist(), batch_size=len(texts), show_progress_bar=False, convert_to_tensor=True
        )


def _check_modules(encoder: EncoderFolder) -> None:
    """Checks that every class that the folder asks to import is the library's own."""
    modules = json.loads((encoder.folder / "modules.json").read_text(encoding="utf-8"))
    types = [module["type"] for module in modules]
    foreign = [name for name in types if not name.startswith("sentence_transformers.")]
    if foreign:
        raise InputError(
            f"encoder {encoder.name}: {encoder.folder} asks for code of its own ({foreign[0]}),"
            " which is never run; use a model made of sentence-transformers' own modules"
        )


Encoder = ImageEncoder | TextEncoder
# The files that show which kind of records an encoder reads.
_FILES_OF_KIND = {
    "images": ("preprocessor_config.json", "processor_config.json"),
    "texts": ("modules.json",),
}


def load_encoder(encoder: EncoderFolder, records: NDArray[Any], *, device: torch.device) -> Encoder:
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
        if any((encoder.folder / file).is_file() for file in files)
    ]
    if kind not in reads:
        raise InputError(
            f"encoder {encoder.name} reads {' and '.join(reads) or 'neither images nor texts'}, and"
            f" the records are {kind}; a model of images has a preprocessor_config.json, one of"
            " texts is a sentence-transformers folder with a modules.json"
        )
    if kind == "images":
        return ImageEncoder(encoder, num_channels=records.shape[1], device=device)
    return TextEncoder(encoder, device=device)


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
    """One thread per operation, since the threads of the pool already share the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with reproducible_convolutions():
            yield
    finally:
        torch.set_num_threads(before)


def encode_source(
    source: Source, encoder: Encoder, *, num_threads: int, on_progress: Callable[[int], object]
) -> Arrays:
    """`features` and `labels` of a source, `test_` of its test part, and `record_names`, if any.

    The other arguments and the errors are those of `extract_features`.
    """
    arrays: dict[str, NDArray[Any]] = {}
    if source.names:
        arrays["record_names"] = np.array(source.names)
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
    encoder: EncoderFolder,
    commit: str | None,
    device: torch.device,
    seconds: float,
    origin: str = "",
) -> None:
    """Writes encoded records, with what made them; the commit is that of a downloaded encoder."""
    packages = ("numpy", "pillow", "sentence-transformers", "tokenizers", "torch", "transformers")
    header = {
        "settings": stage.model_dump(mode="json"),
        "encoder": {"name": stage.encoder, "commit": commit, "weights": encoder.weights},
        "device": str(device),
        "seconds": seconds,
        "software": {
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
    }
    write_arrays(path, header=header, arrays=arrays, origin=origin)
