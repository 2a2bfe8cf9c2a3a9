"""Audited epsilon against the number of models trained, by how their slots are used."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.rule_catalogue import RULES, threshold_rule_named
from dpcanary.figures import style
from dpcanary.figures.layout import draw_line, log_ticks, make_frame
from dpcanary.figures.notes import (
    audited_heading,
    data_note,
    epsilon_label,
    shared_note,
    stated_confidence,
)
from dpcanary.figures.panels import panels_of
from dpcanary.figures.rows import check_agree, check_audits, has_shown_conversion, over_repeats

_MECHANISM = ("sample_rate", "noise_multiplier")
_LINE = ["num_slots", "threshold_rule", "conversion"]
# The looks of rules with one canary in each model, none of which looks as one with several.
_ALONE: tuple[dict[str, Any], ...] = (
    {"color": "#3A3A3A", "marker": "x"},
    {"color": "#E69F00", "marker": "^"},
    {"color": "#56B4E9", "marker": "P"},
    {"color": "#7A3B8F", "marker": "*"},
)
_DASHES = ("-", "--", ":", "-.")


@style.applied()
def draw_models_trained(
    summary: pd.DataFrame, *, note: str = "", panels: Sequence[str] = ()
) -> tuple[Figure, pd.DataFrame]:
    """Draws a line for each number of slots and valid threshold rule.

    Panels show sample rate and noise by default. For the numbers, see `rows.over_repeats`.
    """
    panel = tuple(panels) or _MECHANISM
    rows = summary[summary["is_valid"] & has_shown_conversion(summary)]
    if rows.empty:
        raise InputError("the summary has no valid bound to show")
    check_agree(rows, ("canary", "delta", "significance", "adjacency"))
    check_rows(rows, panels=panel)
    table = over_repeats(rows, [*panel, *_LINE, "num_runs"])
    looks = _looks(table)
    panel_places = panels_of(rows, panel)
    accounted = style.accounted_styles(("substitute", "add_remove"), rows["adjacency"])
    if not (rows[[f"epsilon_upper_{name}" for name in accounted]] < float("inf")).any(axis=None):
        accounted = {}
    figure, [grid] = make_frame(
        titles=[place.title for place in panel_places],
        panel_size=(4.6, 3.4),
        legend=[
            [audited_heading(note), *looks.values()],
            style.accounted_legend("accounted ε (upper bound)", accounted, rows["adjacency"]),
        ],
        notes=[note, _note(rows, note), data_note(rows)],
        caption=[shared_note(rows, panel, needed=bool(panels))],
        labels=("models trained", epsilon_label(rows)),
        sharey=True,
    )
    for axes, place in zip(grid, panel_places, strict=True):
        for name, options in accounted.items():
            axes.axhline(place.of(rows)[f"epsilon_upper_{name}"].max(), **options)
        points = place.of(table)
        for line, options in looks.items():
            curve = points[(points[_LINE] == [*line]).all(axis=1)]
            draw_line(axes, curve.sort_values("num_runs"), "num_runs", options)
        axes.set_xscale("log")
        log_ticks(axes, axis="x")
    for axes in grid:  # after all, because they share their scale
        axes.set_ylim(bottom=0)
    return figure, table


def check_rows(rows: pd.DataFrame, *, panels: Sequence[str] = (), **_: object) -> None:
    """Refuses audits that differ in what panels and lines do not show."""
    check_audits(rows, shown=[*(panels or _MECHANISM), "num_slots"])


def _looks(table: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Keyword arguments of `plot` for each line, in the order of the legend."""
    many = sorted({*table["num_slots"]} - {1})
    looks: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in sorted({*table[_LINE].itertuples(index=False, name=None)}, key=_order):
        slots, rule, conversion = line
        entry = threshold_rule_named(rule)
        name, assumed = entry.label or rule, entry.slots
        options: dict[str, Any] = {"color": entry.colour, "marker": entry.marker}
        if conversion != Conversion.GDP:
            assumed = f"{assumed}, {conversion} conversion"
        label = f"{slots} canaries in each model: {name} ({assumed})"
        if slots == 1:
            label, options = f"1 canary in each model: {name}", _ALONE[len(looks) % len(_ALONE)]
        dashes = _DASHES[many.index(slots) % len(_DASHES)] if slots > 1 else "-"
        looks[line] = options | {"label": label, "linestyle": dashes, "zorder": 3}
    return looks


def _order(line: tuple[Any, ...]) -> tuple[Any, ...]:
    slots, rule, _ = line
    guesses = threshold_rule_named(rule).guesses
    place = [*RULES].index(rule) if rule in RULES else len(RULES)
    return slots, guesses, -place if guesses else place, line[1:]


def _note(rows: pd.DataFrame, note: str) -> str:
    canary = style.canary_name(str(rows["canary"].iloc[0]))
    return (
        f"Canary: {canary}. Lower bounds: GDP conversion except where the legend says"
        f" otherwise{stated_confidence(rows, note)}; mean ± 2 standard errors over repeats"
    )
