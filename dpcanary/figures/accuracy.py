"""Test accuracy of models with a canary beside those that were trained on the target record."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dpcanary.figures import style
from dpcanary.figures.layout import Entry, make_frame
from dpcanary.figures.model_accuracies import (
    TARGET,
    ModelAccuracies,
    accuracy_table,
    place_of,
    settings_of,
)
from dpcanary.figures.notes import data_note, number_range

_MODELS: dict[str, Any] = {"color": "#8A8A8A", "linewidth": 1.0}
_REPEATS: dict[str, Any] = {"color": "black", "linewidth": 1.8}
_GROUP = 0.84  # how much of a sample rate's place its bars take


def draw_test_accuracy(
    tested: Sequence[ModelAccuracies], summary: pd.DataFrame, *, note: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draws a group of bars for each sample rate, and below it how far canaries differ.

    Args:
        tested: the audits to show, at least one.
        summary: has their settings; columns as in summary.tsv.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers (see `model_accuracies.accuracy_table`).

    Raises:
        InputError: see `model_accuracies.accuracy_table`.
    """
    rows = settings_of(tested, summary)
    table = accuracy_table(tested, summary)
    compared = table["difference"].notna().any()
    with style.applied():
        frame = make_frame(
            shape=(2, 1) if compared else (1, 1),
            panel_size=(8.0, 2.6),
            legend=_legend(table),
            notes=[note, _note(table), data_note(rows)],
        )
        first, *others = frame.panels(2 if compared else 1)
        _draw_accuracies(first, table)
        for axes in others:
            _draw_differences(axes, table)
        for axes in (first, *others):
            _name_places(axes, table)
    return frame.figure, table


def _places(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, NDArray[np.float64], float]]:
    """By what models were trained on: that, its rows, their places, and the width of a place."""
    rates, kinds = table["sample_rate"].unique().tolist(), _kinds(table)
    width = _GROUP / len(kinds)
    for index, kind in enumerate(kinds):
        rows = table[table["trained_on"] == kind]
        centres = np.array([float(rates.index(rate)) for rate in rows["sample_rate"]])
        yield kind, rows, centres + (index - (len(kinds) - 1) / 2) * width, width


def _kinds(table: pd.DataFrame) -> list[str]:
    return sorted(set(table["trained_on"]), key=place_of)


def _percent(rows: pd.DataFrame, *columns: str) -> NDArray[np.float64]:
    """Columns as rows of an array, in per cent."""
    shares: NDArray[np.float64] = 100 * rows[[*columns]].to_numpy(dtype=np.float64).T
    return shares


def _draw_accuracies(axes: Axes, table: pd.DataFrame) -> None:
    for kind, rows, places, width in _places(table):
        mean, error = _percent(rows, "accuracy", "error_bar")
        low, high = _percent(rows, "models_low", "models_high")
        axes.bar(places, mean, 0.9 * width, color=_colour(kind), zorder=2)
        axes.vlines(places, low, high, zorder=3, **_MODELS)
        axes.vlines(places, mean - error, mean + error, zorder=4, **_REPEATS)
        for place, value, top in zip(places, mean, np.fmax(high, mean + error), strict=True):
            options: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8}
            axes.annotate(
                f"{value:.1f}", (place, top), (0, 2), textcoords="offset points", **options
            )
    axes.set_ylim(0, 109)  # from 0, so that lengths compare; room for a label above 100
    axes.set_yticks(range(0, 101, 20))
    axes.set_ylabel("test accuracy (%)")


def _draw_differences(axes: Axes, table: pd.DataFrame) -> None:
    axes.axhline(0.0, color="#8A8A8A", linewidth=1.0, zorder=2)
    for kind, rows, places, _ in _places(table):
        if kind != TARGET:
            mean, error = _percent(rows, "difference", "difference_error_bar")
            options = style.canary_options(kind) | {"linestyle": "none", "capsize": 4.0}
            axes.errorbar(places, mean, yerr=error, ecolor=_REPEATS["color"], **options)
    tops = table["difference"].abs() + table["difference_error_bar"].fillna(0.0)
    limit = max(1.2 * 100 * tops.max(), 1.0)  # no less than a point: noise is not to be magnified
    axes.set_ylim(-limit, limit)
    axes.set_ylabel("difference from target\n(percentage points)")


def _name_places(axes: Axes, table: pd.DataFrame) -> None:
    rates = table["sample_rate"].unique().tolist()
    axes.set_xticks(range(len(rates)), [style.setting_name(rate) for rate in rates])
    axes.set_xlim(-0.5, len(rates) - 0.5)
    axes.grid(visible=False, axis="x")


def _colour(trained_on: str) -> str:
    return "#BDBDBD" if trained_on == TARGET else style.canary_colour(trained_on)


def _legend(table: pd.DataFrame) -> list[list[Entry]]:
    kinds = _kinds(table)
    names = {kind: "target record" if kind == TARGET else style.canary_name(kind) for kind in kinds}
    bars = [Entry(names[kind], Patch(color=_colour(kind))) for kind in kinds]
    spread = [Entry("central 95 % of the models", Line2D([], [], **_MODELS))]
    if (table["num_repeats"] > 1).any():
        spread.append(Entry("mean ± 2 standard errors over repeats", Line2D([], [], **_REPEATS)))
    return [[Entry("models trained on:"), *bars], spread]


def _note(table: pd.DataFrame) -> str:
    return (
        "Test accuracy after the last step; a repeat is the mean of"
        f" {number_range(table['num_models'] // table['num_repeats'])} models. Target record: world"
        " 0 of all canaries that replace an input"
    )
