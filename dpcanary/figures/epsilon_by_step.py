"""Epsilon over training: audited lower bounds between the accounted curves."""

import pandas as pd
from matplotlib.figure import Figure

from dpcanary.figures import style
from dpcanary.figures.bounds import bounds_table, legend_of, note_of, shown_rows
from dpcanary.figures.epsilon_panel import draw_bounds
from dpcanary.figures.layout import grid_shape, make_frame

_PANEL = (4.2, 3.3)


def draw_epsilon_by_step(summary: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate and noise, with a line for each canary.

    Args:
        summary: one row per audit, repeat, step and estimate; columns as in summary.tsv.

    Returns:
        The figure, and its numbers (`bounds.COLUMNS`).

    Raises:
        InputError: see `bounds.shown_rows`.
    """
    rows = shown_rows(summary)
    table = bounds_table(rows)
    panels = [*table.groupby(["sample_rate", "noise_multiplier"])][::-1]
    with style.applied():
        frame = make_frame(
            shape=grid_shape(len(panels)),
            panel_size=_PANEL,
            legend=legend_of(table),
            note=note_of(rows, table),
            sharey=True,
        )
        for axes, (setting, points) in zip(frame.panels(len(panels)), panels, strict=True):
            axes.set_title(style.setting_name(*setting))
            draw_bounds(axes, points, x="step")
            axes.set_xlim(left=0)
        frame.axes[0, 0].set_ylim(0, _highest(table))
        frame.body.supxlabel("training step", fontsize=10)
        delta = style.number(rows["delta"].iloc[0])
        frame.body.supylabel(f"ε at δ = {delta}", fontsize=10)
    return frame.figure, table


def _highest(table: pd.DataFrame) -> float:
    """Top of the axis: group privacy may leave the panel where it would flatten all others."""
    loose = table["series"] == "accounted_group_privacy"
    tops = table["epsilon"] + table["error_bar"].fillna(0.0)
    finite = tops[tops < float("inf")]
    wanted = 1.5 * finite[~loose.loc[finite.index]].max()
    return 1.05 * float(min(finite.max(), wanted)) or 1.0
