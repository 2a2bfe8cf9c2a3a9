"""Epsilon against the noise: the audited lower bound beside what each accountant promises."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpcanary.figures import style
from dpcanary.figures.bounds_figure import BoundsFigure, draw_bounds_figure
from dpcanary.figures.layout import log_ticks
from dpcanary.figures.view import View, at_last_step

_VIEW = View(axis="noise_multiplier", panel=("sample_rate",))


def draw_epsilon_by_noise(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate, with the noise multiplier as its axis.

    Args:
        summary: one row per audit, repeat, step and estimate; columns as in summary.tsv. Each
            audit's last step is shown.
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
            panel_size=(4.2, 3.4),
            axis_name="noise multiplier σ",  # noqa: RUF001
            note=note,
        )
        for axes in drawn.all_panels:
            _scale_noise(axes)
        _scale_epsilon(drawn)
    return drawn.figure, drawn.table


def _scale_noise(axes: Axes) -> None:
    low, high = axes.dataLim.intervalx
    axes.set_xscale("log")
    axes.set_xlim(low / 1.15, high * 1.15)
    log_ticks(axes, axis="x")


def _scale_epsilon(drawn: BoundsFigure) -> None:
    """Logarithmic, where a factor is a distance; but a bound of 0 needs a linear axis."""
    if (drawn.table["epsilon"] > 0).all():
        for axes in drawn.all_panels:
            axes.set_yscale("log")
            log_ticks(axes, axis="y")
        drawn.scale_alike()
    else:
        drawn.scale_from_zero()
