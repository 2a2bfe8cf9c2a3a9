"""Epsilon over training: audited lower bounds between the accounted curves."""

import pandas as pd
from matplotlib.figure import Figure

from dpcanary.figures import style
from dpcanary.figures.bounds_figure import draw_bounds_figure
from dpcanary.figures.view import View

_VIEW = View(axis="step", panel=("sample_rate", "noise_multiplier"))


def draw_epsilon_by_step(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate and noise, with a line for each canary.

    Args:
        summary: one row per audit, repeat, step and estimate; columns as in summary.tsv.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers (`bounds.bounds_table`).

    Raises:
        InputError: see `view.shown_rows`.
    """
    with style.applied():
        drawn = draw_bounds_figure(
            summary, _VIEW, panel_size=(4.2, 3.1), axis_name="training step", note=note
        )
        for axes in drawn.all_panels:
            axes.set_xlim(left=0)
        drawn.scale_from_zero()
    return drawn.figure, drawn.table
