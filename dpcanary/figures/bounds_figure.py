"""Audited and accounted epsilon against a step, a number of runs, or a setting of training.

Where the summary has a valid rule and the published one, the panels of the valid rule stand above
or beside those of the published one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpcanary.errors import InputError, suggestion
from dpcanary.figures import style
from dpcanary.figures.bounds import AUDITED, IN_SAMPLE, bounds_table, legend_of
from dpcanary.figures.epsilon_panel import draw_bounds
from dpcanary.figures.layout import grid_shape, log_ticks, make_frame, value_ticks
from dpcanary.figures.notes import bounds_note, data_note
from dpcanary.figures.view import View, at_last_step, shown_rows

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
_PANEL_SIZE = (4.2, 3.1)  # inches


@dataclass(frozen=True)
class _Panels:
    """The panels of all rules, and the numbers in them."""

    axes: list[Axes]
    table: pd.DataFrame

    def scale_from_zero(self) -> None:
        """The same range for all, from 0. Group privacy may leave it where it would flatten all."""
        loose = self.table["series"] == "accounted_group_privacy"
        tops = self.table["epsilon"] + self.table["error_bar"].fillna(0.0)
        finite = tops[tops < float("inf")]
        wanted = 1.5 * finite[~loose.loc[finite.index]].max()
        for axes in self.axes:
            axes.set_ylim(0, 1.05 * float(min(finite.max(), wanted)) or 1.0)

    def scale_by_factors(self) -> None:
        """Logarithmic, where equal factors are equal distances, and the same range for all."""
        for axes in self.axes:
            axes.set_yscale("log")
            log_ticks(axes, axis="y")
        lows, highs = zip(*(axes.get_ylim() for axes in self.axes), strict=True)
        for axes in self.axes:
            axes.set_ylim(min(lows), max(highs))


def draw_bounds_figure(
    summary: pd.DataFrame, *, axis: str, note: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each setting, with a line for each canary.

    Along `num_steps`, the noise may change: audits are calibrated to the same epsilon then.

    Args:
        summary: one row per audit, repeat, step and estimate; columns as in summary.tsv. Unless
            the step is on the axis, each audit's last step is shown.
        axis: a key of `VIEWS`, the column of the summary on the axis.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers (`bounds.bounds_table`).

    Raises:
        InputError: for another axis, and see `view.shown_rows`.
    """
    if axis not in VIEWS:
        raise InputError(f"unknown axis {axis!r}: {suggestion(axis, VIEWS)}")
    view = VIEWS[axis]
    rows = shown_rows(summary if axis == "step" else at_last_step(summary), view)
    table = bounds_table(rows, view)
    rules = [series for series in (AUDITED, IN_SAMPLE) if (table["series"] == series).any()]
    panels = [*table.groupby(list(view.panel))][::-1]  # the highest sample rate first
    with style.applied():
        frame = make_frame(
            shape=grid_shape(len(panels)),
            panel_size=_PANEL_SIZE,
            legend=legend_of(table, view),
            notes=[note, bounds_note(rows), data_note(rows)],
            headings=_headings(rows, rules),
            sharey=True,
        )
        drawn = _Panels([], table)
        for block, rule in enumerate(rules):
            of_rule = frame.panels(len(panels), block=block)
            for axes, (setting, points) in zip(of_rule, panels, strict=True):
                axes.set_title(style.setting_name(*setting))
                draw_bounds(axes, points, view=view, audited=rule)
            drawn.axes.extend(of_rule)
        _scale(drawn, view, rows[axis])
        frame.body.supxlabel(view.name, fontsize=10)
        delta = style.number(rows["delta"].iloc[0])
        frame.body.supylabel(f"ε at δ = {delta}", fontsize=10)
    return frame.figure, table


def _headings(rows: pd.DataFrame, rules: list[str]) -> list[str]:
    if rules == [AUDITED]:
        return [""]  # the note says which rule
    headings = []
    for series in rules:
        valid = series == AUDITED
        rule = rows.loc[rows["is_valid"] == valid, "threshold_rule"].iloc[0]
        name = f"{rule} (the published rule)" if rule == "in_sample" else f"{rule} rule"
        headings.append(f"{name}: {'a valid lower' if valid else 'not a valid'} bound")
    return headings


def _scale(drawn: _Panels, view: View, values: Iterable[float]) -> None:
    """Gives every panel the same range, so that rules and settings compare."""
    for axes in drawn.axes:
        match view.axis:
            case "step":
                axes.set_xlim(left=0)
            case "noise_multiplier":
                low, high = axes.dataLim.intervalx
                axes.set_xscale("log")
                axes.set_xlim(low / 1.15, high * 1.15)
                log_ticks(axes, axis="x")
            case _:  # all others have few values, which are marked
                value_ticks(axes, values)
    # A bound of 0 needs a linear axis.
    if view.axis == "noise_multiplier" and (drawn.table["epsilon"] > 0).all():
        drawn.scale_by_factors()
    else:
        drawn.scale_from_zero()
