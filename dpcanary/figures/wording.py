"""Settings of audits in words: titles of panels, and labels of lines."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dpcanary.adjacency import ADJACENCIES

# Settings that can tell panels apart, and those that can tell lines of a canary apart.
PANELS = (
    "sample_rate", "noise_multiplier", "adjacency", "model", "max_grad_norm", "canary_period",
    "learning_rate", "batch_size", "initialisation", "pretraining", "dataset",
)  # fmt: skip
LINES = (
    "simulation", "ranking", "initialisation", "initial_weights", "pretraining", "adjacency",
    "learning_rate", "max_grad_norm", "canary_period", "batch_size", "model",
)  # fmt: skip
_STARTS = {"zeros": "start at zero", "fixed": "fixed start", "per_run": "start of each run"}
_FORMATS = {
    "noise_multiplier": "σ = {:.3g}",  # noqa: RUF001
    "max_grad_norm": "C = {:g}",
    "canary_period": "k = {:g}",
    "learning_rate": "learning rate {:g}",
    "batch_size": "known batches of {:g}",
    "initial_weights": "{} weights",
    "pretraining": "pretrained on {}",
}


def setting_in_words(key: str, settings: Mapping[str, Any]) -> str:
    """One setting as a figure names it; nothing if the audit does not have it.

    Args:
        key: the setting's name.
        settings: of an audit or panel. Known batches are named by their size, if that is there,
            in place of a sample rate.

    Example:
        >>> setting_in_words("sample_rate", {"sample_rate": 0.25})
        'q = 0.25'
        >>> setting_in_words("sample_rate", {"sample_rate": 1.0, "batch_size": 128})
        'known batches of 128'
        >>> setting_in_words("ranking", {"ranking": "final_model"})
        'final model'
    """
    value = settings.get(key)
    if pd.isna(value):
        return ""
    if key == "sample_rate":
        known_batches = setting_in_words("batch_size", settings)
        return known_batches or f"q = {value:g}"
    if key in _FORMATS:
        return _FORMATS[key].format(value)
    if key == "adjacency":
        return ADJACENCIES.get(value, str(value))
    return _STARTS[value] if key == "initialisation" else str(value).replace("_", " ")


def settings_in_words(keys: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Several settings, with commas between them; each is named once.

    Example:
        >>> settings_in_words(["model", "canary_period"], {"model": "convnet", "canary_period": 5})
        'convnet, k = 5'
    """
    words = [setting_in_words(key, settings) for key in keys]
    return ", ".join(dict.fromkeys(filter(None, words)))
