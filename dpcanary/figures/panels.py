"""The panels of a figure: which settings each shows, and its title."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.wording import LINES, PANELS, settings_in_words


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


Series = tuple[str, str, tuple[Any, ...]]


@dataclass(frozen=True)
class Lines:
    """The lines of a figure, and how each looks in all of its panels.

    Attributes:
        settings: the columns that tell variants of a canary apart.
        looks: keyword arguments of `plot` for each canary, score and variant, in the order of the
            legend.
    """

    settings: tuple[str, ...]
    looks: dict[Series, dict[str, Any]]

    @classmethod
    def of_figure(cls, points: pd.DataFrame, settings: Sequence[str]) -> "Lines":
        """Finds the lines of all audited points of a figure."""
        found = sorted(split_lines(points, settings), key=_order)
        variants: dict[str, list[tuple[Any, ...]]] = {}
        for canary, _, variant in found:
            known = variants.setdefault(canary, [])
            if variant not in known:
                known.append(variant)
        looks = {}
        for canary, score, variant in found:
            known = variants[canary]
            words = settings_in_words(settings, dict(zip(settings, variant, strict=True)))
            looks[canary, score, variant] = style.variant_options(
                canary, score, words, rank=known.index(variant), number=len(known)
            )
        return cls(tuple(settings), looks)

    def split(self, points: pd.DataFrame) -> dict[Series, pd.DataFrame]:
        """The points of each line in a panel, in the order of the legend."""
        parts = split_lines(points, self.settings)
        return {series: parts[series] for series in self.looks if series in parts}


def split_lines(points: pd.DataFrame, settings: Sequence[str]) -> dict[Series, pd.DataFrame]:
    """Audited points by canary, score and variant; a setting that is not used is None."""
    keys = ["canary", "score", *settings]
    audited = points.dropna(subset="canary")
    parts: dict[Series, pd.DataFrame] = {}
    for key, group in audited.groupby(keys, dropna=False):
        canary, score, *variant = key if isinstance(key, tuple) else (key,)
        known = tuple(None if value != value else value for value in variant)  # NaN is not itself
        parts[str(canary), str(score), known] = group
    return parts


def _order(series: Series) -> tuple[Any, ...]:
    """By the catalogue, then by the values of the variant; missing ones first."""
    canary, score, variant = series
    ranks = [(one is not None, "" if one is None else one) for one in variant]
    return (*style.catalogue_order(canary, score), *ranks)


# The settings that a label may name, in its order.
_NAMED = (
    "dataset", "model", "sample_rate", "batch_size", "noise_multiplier", "adjacency",
    "canary_period", "max_grad_norm", "learning_rate", "initialisation", "initial_weights",
    "pretraining", "simulation", "ranking",
)  # fmt: skip


@dataclass(frozen=True)
class SetUp:
    """Audits of one configuration.

    Attributes:
        label: what tells it from the others of its panel, in words.
        rows: of the summary.
    """

    label: str
    rows: pd.DataFrame

    @property
    def audits(self) -> list[str]:
        """Their names."""
        return [str(audit) for audit in self.rows["audit"].unique()]


def set_ups_of(rows: pd.DataFrame, panels: Sequence[str]) -> list[SetUp]:
    """The set-ups of a figure; labels name the settings in which they differ.

    Args:
        rows: of the summary.
        panels: the settings that panels show, which labels need not name.

    Raises:
        InputError: if two set-ups of a panel have the same label, or two audits of one set-up the
            same seed.
    """
    assert {*PANELS, *LINES} == {*_NAMED}
    differ = [key for key in _NAMED if key not in panels and rows[key].nunique(dropna=False) > 1]
    several = len(rows[["canary", "score"]].drop_duplicates()) > 1
    found: list[SetUp] = []
    taken: dict[object, str] = {}
    for _, group in rows.groupby("configuration", sort=False):
        first = {str(key): value for key, value in group.iloc[0].items()}
        words = settings_in_words(differ, first | known_batches(group))
        name = style.canary_name(first["canary"], first["score"] if several else None)
        label = f"{name}, {words}" if several and words else words or name
        place = (label, *(str(first[key]) for key in panels))
        other = taken.setdefault(place, first["audit"])
        audits = group.drop_duplicates("audit")
        if other != first["audit"] or audits["seed"].duplicated().any():
            twice = audits.loc[audits["seed"].duplicated(), "audit"]
            one, two = (
                (other, first["audit"]) if other != first["audit"] else (other, twice.iloc[0])
            )
            raise InputError(
                f"audits {one} and {two} differ in nothing that this figure shows: show them in"
                " different figures"
            )
        found.append(SetUp(label, group))
    return found
