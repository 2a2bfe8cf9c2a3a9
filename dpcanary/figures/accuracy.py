"""Test accuracy of models with a canary, and of models that were trained on the target record."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dpcanary.figures import style
from dpcanary.figures.layout import make_frame
from dpcanary.figures.model_accuracies import TARGET, Accuracies, accuracy_table, settings_of
from dpcanary.figures.notes import data_note, number_range
from dpcanary.figures.panels import known_batches
from dpcanary.figures.wording import setting_in_words

_MODELS: dict[str, Any] = {"color": "#8A8A8A", "linewidth": 1.0}
_REPEATS: dict[str, Any] = {"color": "black", "linewidth": 1.8}
_GROUP = 0.84  # width of all bars of a sample rate; the distance of two sample rates is 1


@style.applied()
def draw_test_accuracy(
    accuracies: Accuracies, summary: pd.DataFrame, *, note: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draws a group of bars for each sample rate, and below it the differences from the target.

    Args:
        accuracies: see `model_accuracies.accuracy_table`.
        summary: has the audits' settings; columns as in summary.tsv.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers (see `model_accuracies.accuracy_table`).

    Raises:
        InputError: see `model_accuracies.settings_of`.
    """
    table = accuracy_table(accuracies, summary)
    rates = table["sample_rate"].unique().tolist()
    rows = settings_of(accuracies, summary)
    models = number_range(table["num_models"] // table["num_repeats"])
    figure, [panels] = make_frame(
        num_panels=2 if table["difference"].notna().any() else 1,
        columns=1,
        panel_size=(8.0, 2.6),
        legend=_legend(table),
        notes=[
            note,
            f"Test accuracy after the last step; each repeat is the mean of {models} models. Bars"
            " of the target record show world 0 of all canaries that replace an input",
            data_note(rows),
        ],
    )
    for axes, draw in zip(panels, (_draw_accuracies, _draw_differences), strict=False):
        draw(axes, table)
        axes.set_xticks(range(len(rates)), [_rate_in_words(rate, rows) for rate in rates])
        axes.set_xlim(-0.5, len(rates) - 0.5)
        axes.grid(visible=False, axis="x")
    return figure, table


def _rate_in_words(rate: float, rows: pd.DataFrame) -> str:
    of_rate = rows[rows["sample_rate"] == rate]
    return setting_in_words("sample_rate", {"sample_rate": rate} | known_batches(of_rate))


def _kinds(table: pd.DataFrame) -> list[str]:
    """What models were trained on, in the order of figures."""
    return [*table["trained_on"].cat.remove_unused_categories().cat.categories]


def _colour(trained_on: str) -> str:
    return "#BDBDBD" if trained_on == TARGET else style.canary_colour(trained_on)


def _legend(table: pd.DataFrame) -> list[list[Any]]:
    bars = [
        Patch(
            color=_colour(kind),
            label="target record" if kind == TARGET else style.canary_name(kind),
        )
        for kind in _kinds(table)
    ]
    spread = [Line2D([], [], **_MODELS, label="central 95 % of the models")]
    if (table["num_repeats"] > 1).any():
        errors = "mean ± 2 standard errors over repeats"
        spread.append(Line2D([], [], **_REPEATS, label=errors))
    return [["models trained on:", *bars], spread]


def _places(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, NDArray[np.float64], float]]:
    """For each kind of training record: its name, its rows, and its bars' places and width."""
    rates, kinds = table["sample_rate"].unique().tolist(), _kinds(table)
    width = _GROUP / len(kinds)
    for index, kind in enumerate(kinds):
        rows = table[table["trained_on"] == kind]
        centres = np.array([float(rates.index(rate)) for rate in rows["sample_rate"]])
        yield kind, rows, centres + (index - (len(kinds) - 1) / 2) * width, width


def _percent(rows: pd.DataFrame, *columns: str) -> NDArray[np.float64]:
    """Columns in per cent, as rows of an array."""
    shares: NDArray[np.float64] = 100 * rows[[*columns]].to_numpy(dtype=np.float64).T
    return shares


def _draw_accuracies(axes: Axes, table: pd.DataFrame) -> None:
    for kind, rows, places, width in _places(table):
        mean, error = _percent(rows, "accuracy", "error_bar")
        low, high = _percent(rows, "models_low", "models_high")
        axes.bar(places, mean, 0.9 * width, color=_colour(kind), zorder=2)
        axes.vlines(places, low, high, zorder=3, **_MODELS)
        axes.vlines(places, mean - error, mean + error, zorder=4, **_REPEATS)
        options: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8}
        for place, value, top in zip(places, mean, np.fmax(high, mean + error), strict=True):
            axes.annotate(
                f"{value:.1f}", (place, top), (0, 2), textcoords="offset points", **options
            )
    axes.set_ylim(0, 109)  # from 0, so that lengths compare; labels above 100 need room
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
    limit = max(1.2 * 100 * tops.max(), 1.0)  # at least one point, so that noise looks small
    axes.set_ylim(-limit, limit)
    axes.set_ylabel("difference from target\n(percentage points)")
