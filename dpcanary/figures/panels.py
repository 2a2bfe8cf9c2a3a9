"""The panels of a figure: which settings each shows, and its title."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dpcanary.figures.wording import settings_in_words


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        settings: what tells it from the others, by column of the summary.
        title: these settings in words.
    """

    settings: dict[str, Any]
    title: str

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table that belong to this panel."""
        inside = pd.Series(True, index=table.index)
        for key, value in self.settings.items():
            inside &= table[key].isna() if pd.isna(value) else table[key] == value
        return table[inside]


def panels_of(rows: pd.DataFrame, keys: Sequence[str], *, falling: bool = False) -> list[Panel]:
    """The panels that some audits need.

    Args:
        rows: of the summary.
        keys: the columns that tell panels apart.
        falling: whether numbers fall from panel to panel; otherwise only sample rates do. Names
            stand in the order of the rows.
    """
    first = rows[[*keys]].drop_duplicates().reset_index(drop=True)
    ranks = pd.DataFrame({key: _ranks(first[key], falling=falling) for key in keys})
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


def _ranks(values: "pd.Series[Any]", *, falling: bool) -> "pd.Series[float]":
    if not pd.api.types.is_numeric_dtype(values):
        return pd.Series(pd.factorize(values, use_na_sentinel=False)[0], index=values.index)
    return -values if falling or values.name == "sample_rate" else values
