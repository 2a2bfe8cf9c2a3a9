"""What ranks of secrets prove against the number of secrets, their values, copies and noise."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.layout import Entry, draw_line, make_frame, value_ticks
from dpcanary.figures.notes import audited_heading, epsilon_label, number_range, stated_confidence
from dpcanary.figures.rows import (
    check_agree,
    check_repeats,
    last_rows,
    of_first_valid_rule,
    over_repeats,
)

_ACCOUNTED, _NOISE = "epsilon_upper_substitute", "noise_multiplier"
# What a sweep may vary, and the label of its axis; the last one if it varies the noise alone.
_AXES = {
    "num_slots": "secrets in one training",
    "num_candidates": "values of a secret",
    "num_copies": "copies of a secret",
    _ACCOUNTED: "accounted ε",
}
# The line of all noises, along what is accounted for them.
_ALONG_ACCOUNTED: dict[str, Any] = {"color": "black", "marker": "o", "zorder": 3}
_DOTTED: dict[str, Any] = {"linestyle": ":", "linewidth": 1.2, "zorder": 2.5}


@style.applied()
def draw_secrets_figure(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sweep, along what it varies, with a line for each noise multiplier.

    Args:
        summary: of audits whose slots hold secrets.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers: one row per point, with its `axis`, `value` and `line` as the
        legend names it, `epsilon` (the mean over repeats), `error_bar` (two standard errors) and
        `num_repeats`. What is accounted is for all copies of a secret together.

    Raises:
        InputError: if there is no valid bound, a sweep varies several quantities, or audits differ
            in what the figure does not show.
    """
    rows = _shown_rows(summary)
    check_rows(rows)
    table = over_repeats(rows, ["sweep", *_AXES, _NOISE])
    table["axis"] = table["sweep"].map({name: _axis(rows, name) for name in rows["sweep"].unique()})
    table["value"] = [row[row["axis"]] for _, row in table.iterrows()]
    labels = _labels(table)
    table["line"] = table[_NOISE].map(labels)
    looks = style.ranked(sorted(labels, reverse=True), label=labels.__getitem__)
    figure, [grid] = make_frame(
        titles=[""] * table["sweep"].nunique(),
        panel_size=(3.4, 3.1),
        legend=[
            *_audited_legend(table, looks, note),
            [_DOTTED | {"color": "black", "label": "accounted ε of all copies of a secret"}],
        ],
        notes=[note, _bounds_note(rows, table, note), _fixed_note(table)],
        labels=("", epsilon_label(rows)),
        sharey=True,
    )
    for axes, sweep in zip(grid, rows["sweep"].unique(), strict=True):
        panel = table[table["sweep"] == sweep].sort_values("value")
        axis = panel["axis"].iloc[0]
        for noise, curve in panel.groupby(_NOISE) if axis != _ACCOUNTED else [(None, panel)]:
            look = looks.get(noise, _ALONG_ACCOUNTED)
            draw_line(axes, curve, "value", look)
            axes.plot(curve["value"], curve[_ACCOUNTED], color=look["color"], **_DOTTED)
        value_ticks(axes, panel["value"])
        axes.set_xlabel(_AXES[axis])
    # What is accounted for many copies may be far above all that is shown.
    highest = max(table["epsilon"].max(), table[_ACCOUNTED].min())
    for axes in grid:  # after all, because they share their scale
        axes.set_ylim(0, 1.1 * highest)
    return figure, table


def _audited_legend(table: pd.DataFrame, looks: style.Styles, note: str) -> Iterator[list[Entry]]:
    """The lines of each noise, and the line of all noises, where they are drawn."""
    is_along = table["axis"] == _ACCOUNTED
    if not is_along.all():
        by_epsilon = ", by the ε that is accounted for a record:"
        yield [audited_heading(note, end=by_epsilon), *looks.values()]
    if is_along.any():
        label = audited_heading(note, end=", along the accounted ε")
        yield [_ALONG_ACCOUNTED | {"label": label}]


def _shown_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first valid rule and its first conversion, after the last step."""
    rows = of_first_valid_rule(summary)
    rows = last_rows(rows[rows["conversion"] == rows["conversion"].iloc[0]])
    check_agree(rows, ("delta", "significance"))
    # A secret label is in one record.
    return rows.fillna({"num_copies": 1})


def check_rows(rows: pd.DataFrame, **_: object) -> None:
    """Refuses sweeps of several quantities, and audits that differ in what the figure lacks."""
    check_agree(rows, ("canary", "num_steps", "sample_rate", "num_runs"))
    *settings, _accounted = _AXES
    for sweep, of_sweep in rows.groupby("sweep"):
        _axis(rows, str(sweep))
        shown = [*settings, _NOISE]
        for _place, audits in of_sweep.groupby(shown, dropna=False):
            check_repeats(audits.drop_duplicates("audit"), shown)


def _axis(rows: pd.DataFrame, sweep: str) -> str:
    *settings, accounted = _AXES
    of_sweep = rows[rows["sweep"] == sweep]
    varied = [key for key in settings if of_sweep[key].nunique() > 1]
    if len(varied) > 1:
        raise InputError(f"sweep {sweep} varies {' and '.join(varied)}: write a sweep for each")
    return varied[0] if varied else accounted


def _labels(table: pd.DataFrame) -> dict[float, str]:
    """What is accounted for one record, by the noise; the noise where no audit has one copy."""
    labels = {noise: f"σ = {noise:.3g}" for noise in table[_NOISE]}  # noqa: RUF001
    of_one = table.loc[table["num_copies"] == 1, [_NOISE, _ACCOUNTED]].to_numpy()
    return labels | {noise: f"{epsilon:.3g}" for noise, epsilon in of_one}


def _bounds_note(rows: pd.DataFrame, table: pd.DataFrame, note: str) -> str:
    first, repeats = rows.iloc[0], number_range(table["num_repeats"])
    return (
        f"Lower bounds: {first['threshold_rule']} rule, {first['conversion']} conversion"
        f"{stated_confidence(rows, note)}"
        + (f"; mean ± 2 standard errors of {repeats} repeats" if repeats != "1" else "")
    )


def _fixed_note(table: pd.DataFrame) -> str:
    """The quantities of the panels that vary another one."""
    *settings, _ = _AXES
    others = {key: table.loc[table["axis"] != key, key] for key in settings}
    values = [
        f"{_AXES[key]}: {number_range(numbers)}" for key, numbers in others.items() if len(numbers)
    ]
    return f"Where it is not on the axis, {'; '.join(values)}"
