"""Settings of audits in words, and the panels that they distinguish."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dpcanary.experiment.summary import SHOWN

_FALLING = ("sample_rate", "noise_multiplier")


def setting_in_words(key: str, settings: Mapping[str, Any]) -> str:
    """One setting as a figure names it; nothing if the audit does not have it.

    Known batches are named by their size, if that is there, in place of a sample rate.

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
    if key == "sample_rate" and not pd.isna(settings.get("batch_size")):
        return setting_in_words("batch_size", settings)
    words = SHOWN[key].words
    if isinstance(words, str) and words:
        return words.format(value)
    return words[value] if words else str(value).replace("_", " ")


def settings_in_words(keys: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Several settings, with commas between them; each is named once.

    Example:
        >>> settings_in_words(["model", "canary_period"], {"model": "convnet", "canary_period": 5})
        'convnet, k = 5'
    """
    words = [setting_in_words(key, settings) for key in keys]
    return ", ".join(dict.fromkeys(filter(None, words)))


@dataclass(frozen=True)
class Panel:
    """One panel: the settings that distinguish it, and these in words."""

    settings: dict[str, Any]
    title: str

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table that belong to this panel."""
        inside = pd.Series(True, index=table.index)
        for key, value in self.settings.items():
            inside &= table[key].isna() if pd.isna(value) else table[key] == value
        return table[inside]


def panels_of(rows: pd.DataFrame, keys: Sequence[str]) -> list[Panel]:
    """The panels that some audits need, one for each value of the columns `keys`.

    Sample rates and noise multipliers fall from panel to panel, other numbers rise, and names stand
    in the order of the rows.
    """
    first = rows[[*keys]].drop_duplicates().reset_index(drop=True)
    ranks = pd.DataFrame({key: _ranks(first[key]) for key in keys})
    panels = []
    for index in ranks.sort_values([*keys]).index if keys else [None]:
        settings = {} if index is None else {str(k): v for k, v in first.loc[index].items()}
        inside = Panel(settings, "").of(rows)
        panels.append(Panel(settings, settings_in_words(keys, settings | known_batches(inside))))
    return panels


def known_batches(rows: pd.DataFrame) -> dict[str, Any]:
    """The size of the known batches of some audits; there is no sample rate where sizes differ."""
    sizes = rows["batch_size"].dropna().unique().tolist()
    if len(sizes) > 1:
        return {"sample_rate": None}
    return {"batch_size": sizes[0]} if sizes else {}


def _ranks(values: "pd.Series[Any]") -> "pd.Series[float]":
    if not pd.api.types.is_numeric_dtype(values):
        return pd.Series(pd.factorize(values, use_na_sentinel=False)[0], index=values.index)
    return -values if values.name in _FALLING else values
