"""Audited and accounted epsilon against a step, a number of runs, or a setting of training.

The panels show a valid rule if the summary has one. A rule that is not valid can be shown too: its
panels then stand below or to the right of those of the valid rule.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpcanary.errors import InputError, suggestion
from dpcanary.figures import style
from dpcanary.figures.bounds import AUDITED, IN_SAMPLE, Looks, bounds_table
from dpcanary.figures.layout import (
    Styles,
    accounted_legend,
    accounted_of_panel,
    accounted_styles,
    log_ticks,
    make_frame,
    value_ticks,
)
from dpcanary.figures.notes import bounds_note, data_note, price_note, shared_note
from dpcanary.figures.panels import Lines, panels_of
from dpcanary.figures.view import View, shown_rows

_BY_SETTING = ("sample_rate",)
_BY_MECHANISM = ("sample_rate", "noise_multiplier")
VIEWS = {
    view.axis: view
    for view in (
        View("step", "training step", _BY_MECHANISM),
        View("noise_multiplier", "noise multiplier σ", _BY_SETTING),  # noqa: RUF001
        View(
            "num_runs",
            "number of runs R, of both worlds together",
            _BY_MECHANISM,
            accounted=("substitute", "add_remove"),
        ),
        View("max_grad_norm", "clipping norm C", _BY_SETTING),
        View("num_steps", "number of training steps T", _BY_SETTING),
        View("learning_rate", "learning rate", _BY_SETTING),
    )
}
# Half the length of the dash that stands for a curve of one point, relative to its place.
_DASH = 0.06


@style.applied()
def draw_bounds_figure(
    summary: pd.DataFrame,
    *,
    axis: str,
    note: str = "",
    in_sample: bool = False,
    panels: Sequence[str] = (),
    lines: Sequence[str] = (),
) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each setting, with a line for each canary.

    The noise may change along `num_steps`, because it is calibrated to the same epsilon.

    Args:
        summary: one row per audit, repeat, step and estimate; columns as in summary.tsv. The step
            and the number of runs are the largest of each audit, unless they are on the axis.
        axis: a key of `VIEWS`, the column of the summary on the axis.
        note: what a reader must know; printed below.
        in_sample: whether the rule that is not valid gets panels of its own beside those of the
            valid rule. By default, a note says how far its bounds are from the valid ones. If the
            summary has no valid rule, the other one is shown in any case.
        panels: the settings that tell panels apart, of `wording.PANELS`; by default the sample rate
            and, where it is not on the axis and does not follow from it, the noise.
        lines: the settings that tell lines of one canary apart, of `wording.LINES`.

    Returns:
        The figure, and its numbers (`bounds.bounds_table`), those that are not drawn included.

    Raises:
        InputError: for another axis, if `in_sample` has nothing to show, and see
            `view.shown_rows` and `bounds.bounds_table`.
    """
    if axis not in VIEWS:
        raise InputError(f"unknown axis {axis!r}: {suggestion(axis, VIEWS)}")
    view = VIEWS[axis]
    view = replace(view, panel=tuple(panels) or view.panel, lines=tuple(lines))
    rows = shown_rows(summary, view)
    audited, accounted = accounted_styles(view.accounted, rows["adjacency"])
    table = bounds_table(rows, replace(view, accounted=tuple(accounted)))
    accounted = {name: one for name, one in accounted.items() if _is_finite(table, name)}
    rules = _drawn_rules(table, in_sample=in_sample)
    drawn = table[table["series"].isin(rules) | table["series"].str.startswith("accounted")]
    places = panels_of(rows, view.panel, falling=not panels)
    looks, curves = Looks.of_figure(rows, axis), Lines.of_figure(drawn, view.lines)
    figure, blocks = make_frame(
        num_panels=len(places),
        panel_size=(4.2, 3.1),
        legend=[
            ["audited ε (lower bound):", *looks.line_legend(curves)],
            looks.marker_legend(),
            accounted_legend(accounted, audited),
        ],
        notes=[
            note,
            "" if accounted else "No accounted ε is finite",
            bounds_note(rows, looks),
            price_note(table),
            shared_note(rows, (*view.place, *lines), needed=bool(panels)),
            data_note(rows),
        ],
        headings=_headings(rows, rules),
        labels=(view.name, f"ε at δ = {style.number(rows['delta'].iloc[0])}"),
        sharey=True,
    )
    for block, rule in zip(blocks, rules, strict=True):
        for axes, panel in zip(block, places, strict=True):
            axes.set_title(panel.title)
            points = panel.of(drawn)
            of_panel = accounted_of_panel(accounted, panel.of(rows)["adjacency"])
            _draw_accounted(axes, points, axis, of_panel)
            for curve, options in looks.curves(points[points["series"] == rule], curves):
                _draw_audited(axes, curve, axis, options)
    _scale([axes for block in blocks for axes in block], drawn, rows[axis])
    return figure, table


def _is_finite(table: pd.DataFrame, accounted: str) -> bool:
    """Whether an accounted curve has a point that can be drawn."""
    epsilons = table.loc[table["series"] == f"accounted_{accounted}", "epsilon"]
    return bool((epsilons < float("inf")).any())


def _drawn_rules(table: pd.DataFrame, *, in_sample: bool) -> list[str]:
    """The audited series that get panels."""
    rules = [series for series in (AUDITED, IN_SAMPLE) if (table["series"] == series).any()]
    if not in_sample:
        return rules[:1]
    if IN_SAMPLE not in rules:
        raise InputError("the summary has no bounds of a rule that is not valid")
    return rules


def _headings(rows: pd.DataFrame, rules: list[str]) -> list[str]:
    if rules == [AUDITED]:
        return [""]  # the note names the rule
    headings = []
    for series in rules:
        valid = series == AUDITED
        rule = rows.loc[rows["is_valid"] == valid, "threshold_rule"].iloc[0]
        name = f"{rule} (the published rule)" if rule == "in_sample" else f"{rule} rule"
        headings.append(f"{name}: {'a valid lower' if valid else 'not a valid'} bound")
    return headings


def _draw_accounted(axes: Axes, points: pd.DataFrame, axis: str, accounted: Styles) -> None:
    for name, options in accounted.items():
        curve = points[points["series"] == f"accounted_{name}"]
        places, epsilons = curve[axis].tolist(), curve["epsilon"].tolist()
        if pd.isna(places).all():  # the curve does not depend on the axis
            axes.axhline(epsilons[0], **options)
            continue
        if len(places) == 1:  # a line through one point would be invisible
            places, epsilons = [places[0] * (1 - _DASH), places[0] * (1 + _DASH)], epsilons * 2
        axes.plot(places, epsilons, **options)


def _draw_audited(axes: Axes, curve: pd.DataFrame, axis: str, options: dict[str, Any]) -> None:
    """Draws one line; an error bar of NaN is not drawn."""
    options = {"elinewidth": 1.0, "capsize": 2.5, **options}
    axes.errorbar(curve[axis], curve["epsilon"], yerr=curve["error_bar"], **options)
    axes.tick_params(labelleft=True)


def _scale(panels: Sequence[Axes], table: pd.DataFrame, values: "pd.Series[float]") -> None:
    """Gives all panels the same range, so that rules and settings compare."""
    by_noise = values.name == "noise_multiplier"
    for axes in panels:
        if by_noise:
            low, high = axes.dataLim.intervalx
            axes.set_xscale("log")
            axes.set_xlim(low / 1.15, high * 1.15)
            log_ticks(axes, axis="x")
        elif values.name == "step":
            axes.set_xlim(left=0)
        else:  # the others have few values, each of which gets a tick
            value_ticks(axes, values)
    if by_noise and (table["epsilon"] > 0).all():  # a logarithmic axis has no 0
        for axes in panels:
            axes.set_yscale("log")
            log_ticks(axes, axis="y")
        lows, highs = zip(*(axes.get_ylim() for axes in panels), strict=True)
        limits = min(lows), max(highs)
    else:
        tops = table["epsilon"] + table["error_bar"].fillna(0.0)
        finite = tops < float("inf")
        # Group privacy may leave the panels if it would flatten all other lines.
        others = finite & (table["series"] != "accounted_group_privacy")
        highest = min(tops[finite].max(), 1.5 * tops[others].max())
        limits = 0.0, 1.05 * float(highest) or 1.0
    for axes in panels:
        axes.set_ylim(*limits)
