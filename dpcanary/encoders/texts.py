"""Encodes texts: a sentence transformer with its own pooling and normalisation."""

import copy
import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerBase

from dpcanary.encoders.folders import EncoderFolder, loading
from dpcanary.errors import InputError

_OWN_CODE = "sentence_transformers."


class TextEncoder:
    """A sentence transformer.

    Args:
        found: a sentence-transformers folder.
        device: where the model computes.

    Raises:
        InputError: if the folder holds no such model, or asks for code of its own.
    """

    def __init__(self, found: EncoderFolder, *, device: torch.device) -> None:
        with loading(found):
            _check_modules(found)
            self._model = SentenceTransformer(
                str(found.folder),
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


def _check_modules(found: EncoderFolder) -> None:
    """Checks that every class that the folder asks to import is the library's own."""
    modules = json.loads((found.folder / "modules.json").read_text(encoding="utf-8"))
    foreign = [module["type"] for module in modules if not module["type"].startswith(_OWN_CODE)]
    if foreign:
        raise InputError(
            f"encoder {found.name}: {found.folder} asks for code of its own ({foreign[0]}), which"
            " is never run; use a model made of sentence-transformers' own modules"
        )
