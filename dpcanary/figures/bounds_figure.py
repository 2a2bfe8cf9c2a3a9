"""Figures of bounds: panels of lines, the valid rule's above those of the published one."""

from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpcanary.figures import style
from dpcanary.figures.bounds import AUDITED, IN_SAMPLE, bounds_table, legend_of
from dpcanary.figures.epsilon_panel import draw_bounds
from dpcanary.figures.layout import Frame, grid_shape, make_frame
from dpcanary.figures.notes import bounds_note, data_note
from dpcanary.figures.view import View, shown_rows

_HEADINGS = {
    AUDITED: "{rule} rule: a valid lower bound",
    IN_SAMPLE: "in_sample (the published rule): not a valid bound",
}


@dataclass(frozen=True)
class BoundsFigure:
    """A figure whose axes are still to be scaled.

    Attributes:
        figure: the whole.
        table: its numbers, see `bounds.bounds_table`.
        panels: the panels of every rule, the highest sample rate first.
    """

    figure: Figure
    table: pd.DataFrame
    panels: list[list[Axes]]

    @property
    def all_panels(self) -> list[Axes]:
        """The panels of all rules."""
        return [axes for panels in self.panels for axes in panels]

    def scale_alike(self) -> None:
        """Gives every panel the range that all of them need, so that rules compare."""
        lows, highs = zip(*(axes.get_ylim() for axes in self.all_panels), strict=True)
        for axes in self.all_panels:
            axes.set_ylim(min(lows), max(highs))

    def scale_from_zero(self) -> None:
        """The same, from 0; group privacy may leave panels where it would flatten all else."""
        loose = self.table["series"] == "accounted_group_privacy"
        tops = self.table["epsilon"] + self.table["error_bar"].fillna(0.0)
        finite = tops[tops < float("inf")]
        wanted = 1.5 * finite[~loose.loc[finite.index]].max()
        for axes in self.all_panels:
            axes.set_ylim(0, 1.05 * float(min(finite.max(), wanted)) or 1.0)


def draw_bounds_figure(
    summary: pd.DataFrame,
    view: View,
    *,
    panel_size: tuple[float, float],
    axis_name: str,
    note: str,
) -> BoundsFigure:
    """Draws a panel for each setting; where there are a valid and the in-sample rule, for each.

    Args:
        summary: one row per audit, repeat, step and estimate; columns as in summary.tsv.
        view: what is on the axis and in the panels.
        panel_size: (width, height) in inches.
        axis_name: what is written below the axis.
        note: the user's.

    Returns:
        The figure, whose axes are linear and as wide as their data needs.

    Raises:
        InputError: see `view.shown_rows`.
    """
    rows = shown_rows(summary, view)
    table = bounds_table(rows, view)
    rules = [series for series in (AUDITED, IN_SAMPLE) if (table["series"] == series).any()]
    panels = [*table.groupby(list(view.panel))][::-1]
    frame = make_frame(
        shape=grid_shape(len(panels)),
        panel_size=panel_size,
        legend=legend_of(table, view),
        notes=[note, bounds_note(rows), data_note(rows)],
        headings=_headings(rows, rules),
        sharey=True,
    )
    axes_of_rules = [frame.panels(len(panels), block=index) for index in range(len(rules))]
    for rule, axes_of_rule in zip(rules, axes_of_rules, strict=True):
        for axes, (setting, points) in zip(axes_of_rule, panels, strict=True):
            axes.set_title(style.setting_name(*setting))
            draw_bounds(axes, points, view=view, audited=rule)
    _name_axes(frame, axis_name, rows)
    return BoundsFigure(figure=frame.figure, table=table, panels=axes_of_rules)


def _headings(rows: pd.DataFrame, rules: list[str]) -> list[str]:
    if rules == [AUDITED]:
        return [""]  # the note says which rule
    valid = next((rule for rule in rows["threshold_rule"] if rule != "in_sample"), "")
    return [_HEADINGS[rule].format(rule=valid) for rule in rules]


def _name_axes(frame: Frame, axis_name: str, rows: pd.DataFrame) -> None:
    frame.body.supxlabel(axis_name, fontsize=10)
    delta = style.number(rows["delta"].iloc[0])
    frame.body.supylabel(f"ε at δ = {delta}", fontsize=10)
