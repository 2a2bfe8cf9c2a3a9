"""Epsilon after the last step against the number of runs that the bound rests on."""

import pandas as pd
from matplotlib.figure import Figure

from dpcanary.figures import style
from dpcanary.figures.bounds_figure import draw_bounds_figure
from dpcanary.figures.layout import value_ticks
from dpcanary.figures.view import View, at_last_step

_VIEW = View(
    axis="num_runs",
    panel=("sample_rate", "noise_multiplier"),
    accounted=("substitute", "add_remove"),
)


def draw_epsilon_by_runs(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate and noise, with the number of runs as its axis.

    Args:
        summary: one row per audit, number of runs, repeat, step and estimate; columns as in
            summary.tsv. Each audit's last step is shown.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers (`bounds.bounds_table`).

    Raises:
        InputError: see `view.shown_rows`.
    """
    with style.applied():
        drawn = draw_bounds_figure(
            at_last_step(summary),
            _VIEW,
            panel_size=(4.2, 3.1),
            axis_name="number of runs R (models trained, half in each world)",
            note=note,
        )
        for axes in drawn.all_panels:
            value_ticks(axes, summary["num_runs"])
        drawn.scale_from_zero()
    return drawn.figure, drawn.table
