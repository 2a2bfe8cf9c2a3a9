"""Epsilon after the last step against a setting of training."""

import pandas as pd
from matplotlib.figure import Figure

from dpcanary.errors import InputError, suggestion
from dpcanary.figures import style
from dpcanary.figures.bounds_figure import draw_bounds_figure
from dpcanary.figures.layout import value_ticks
from dpcanary.figures.view import View, at_last_step

AXIS_NAMES = {
    "max_grad_norm": "clipping norm C",
    "num_steps": "number of training steps T",
    "learning_rate": "learning rate",
}


def draw_epsilon_by_setting(
    summary: pd.DataFrame, *, setting: str, note: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate, with the setting as its axis.

    The noise may change along the axis if that is `num_steps`: audits are calibrated to the same
    epsilon then.

    Args:
        summary: one row per audit, repeat, step and estimate; columns as in summary.tsv. Each
            audit's last step is shown.
        setting: a key of `AXIS_NAMES`.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers (`bounds.bounds_table`).

    Raises:
        InputError: for another setting, and see `view.shown_rows`.
    """
    if setting not in AXIS_NAMES:
        raise InputError(f"unknown setting {setting!r}: {suggestion(setting, AXIS_NAMES)}")
    with style.applied():
        drawn = draw_bounds_figure(
            at_last_step(summary),
            View(axis=setting, panel=("sample_rate",)),
            panel_size=(4.2, 3.1),
            axis_name=AXIS_NAMES[setting],
            note=note,
        )
        for axes in drawn.all_panels:
            value_ticks(axes, summary[setting])
        drawn.scale_from_zero()
    return drawn.figure, drawn.table
