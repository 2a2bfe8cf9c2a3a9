"""The lines of a figure of bounds: one for each canary, score and variant."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dpcanary.figures import style
from dpcanary.figures.wording import settings_in_words

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
