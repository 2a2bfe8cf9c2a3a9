"""What each set-up of an experiment shows, beside what is accounted: one row each."""

import sys
from collections.abc import Hashable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dpcanary.core.files import write_atomically
from dpcanary.core.printing import rounded_down
from dpcanary.errors import InputError
from dpcanary.estimation.rule_catalogue import Proof
from dpcanary.figures import style
from dpcanary.figures.layout import Entry, make_frame

MOST_ROWS = 16
SUFFIXES = (".png", ".pdf")
_ROW_HEIGHT = 0.42
_MARKS: dict[str, dict[str, Any]] = {
    "add_remove": {"color": "black", "linestyle": (0, (2, 1)), "linewidth": 2.2},
    "substitute": {"color": "black", "linestyle": "-", "linewidth": 2.2},
}
# The legend shows bars in this colour where each canary has its own.
_OF_ALL_CANARIES = "#8A8A8A"
_PROTECTS = {
    "add_remove": "accounted, add/remove: whether a record is there",
    "substitute": "accounted, substitute: what it says",
}


@style.applied()
def draw_overview(table: pd.DataFrame) -> Figure:
    """Draws a bar for each of the first 16 rows, up to its lower bound, and its accounted epsilons.

    The table is that of `results_table.results_table`. Numbers that are no valid bounds are left
    out, and marked.
    """
    if table.empty:
        raise InputError("there is no valid bound to show")
    shown = table.head(MOST_ROWS)
    shown = shown.assign(shown=shown["shown"].where(shown["proof"] != Proof.NOT_VALID))
    has_means = ((shown["bounds"] > 1) & shown["shown"].notna()).any()
    by_attack = "a lower bound, or a mean of several" if has_means else "epsilon is at least this"
    colours = {style.canary_colour(canary) for canary in shown["canary"]}
    colour = colours.pop() if len(colours) == 1 else _OF_ALL_CANARIES
    legend: list[Entry] = [
        Patch(color=colour, alpha=0.75, label=f"shown by attack: {by_attack}"),
        *(look | {"label": _PROTECTS[kind]} for kind, look in _MARKS.items()),
    ]
    left_out = len(table) - len(shown)
    notes = ["Lower bounds after the last step; the table says what they assume"]
    if has_means:
        notes.append("A mean of several bounds is no bound: some of them may exceed what is true")
    if left_out:
        notes.append(f"{left_out} more rows are in the table")
    figure, [[axes]] = make_frame(
        titles=[""], panel_size=(7.4, 0.75 + _ROW_HEIGHT * len(shown)), legend=[legend], notes=notes
    )
    _draw_rows(axes, shown)
    return figure


def _draw_rows(axes: Axes, table: pd.DataFrame) -> None:
    names = _names(table)
    shown = table[["shown", "add_remove", "substitute"]]
    largest = float(np.nanmax(shown.where(np.isfinite(shown)), initial=0.0)) or 1.0
    for place, row in enumerate(table.to_dict("records")):
        colour = style.canary_colour(row["canary"])
        is_valid = row["shown"] == row["shown"]
        length = row["shown"] if is_valid else 0.0
        axes.barh(place, length, height=0.62, color=colour, alpha=0.75)
        is_inside = length > (0.3 if row["bounds"] > 1 else 0.12) * largest
        axes.annotate(
            _length_in_words(row) if is_valid else "no valid bound",
            (length, place),
            xytext=(-4 if is_inside else 4, 0),
            textcoords="offset points",
            ha="right" if is_inside else "left",
            va="center",
            fontsize=9,
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "linewidth": 0},
        )
        for kind, look in _MARKS.items():
            if isfinite(row[kind]) and (kind == "add_remove" or row["adjacency"] == "substitute"):
                axes.vlines(row[kind], place - 0.42, place + 0.42, **look)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.06 * largest)
    axes.set_xlabel("epsilon")
    axes.grid(axis="y", visible=False)


def _length_in_words(row: Mapping[Hashable, Any]) -> str:
    mean = f" (mean of {row['bounds']})" if row["bounds"] > 1 else ""
    return rounded_down(row["shown"]) + mean


def _names(table: pd.DataFrame) -> list[str]:
    """The canaries, or the audits where a canary or a rule comes twice."""
    canaries = [style.canary_name(canary) for canary in table["canary"]]
    if len({*canaries}) == len(canaries):
        return canaries
    audits = [*table["audit"]]
    if len({*audits}) == len(audits):
        return audits
    return [f"{audit}, {rule}" for audit, rule in zip(audits, table["rule"], strict=True)]


def shown(figure: Figure, path: Path | str | None) -> Figure:
    """The figure, also written into a file if there is a path, and shown by a notebook.

    Notebooks show a figure that is the value of a cell only after `matplotlib.pyplot` was imported,
    which this library does not use.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"}, bbox_inches=None)  # type: ignore[no-untyped-call]
    if path is not None:
        save(figure, Path(path))
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes a figure; an error if the file's name does not end in .png or .pdf."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: figures are {' or '.join(SUFFIXES)} files")
    kind = path.suffix.removeprefix(".")
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=style.RASTER_DPI))
