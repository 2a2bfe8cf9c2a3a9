"""Epsilon against the noise: the audited lower bound beside what each accountant promises."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpcanary.figures import style
from dpcanary.figures.bounds import bounds_table, legend_of, note_of, shown_rows
from dpcanary.figures.epsilon_panel import draw_bounds
from dpcanary.figures.layout import grid_shape, log_ticks, make_frame

_PANEL = (4.2, 3.7)


def draw_epsilon_by_noise(summary: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate, with the noise multiplier as its axis.

    Args:
        summary: one row per audit, repeat, step and estimate; columns as in summary.tsv. Each
            audit's last step is shown.

    Returns:
        The figure, and its numbers (`bounds.COLUMNS`).

    Raises:
        InputError: see `bounds.shown_rows`.
    """
    last = summary.groupby("audit")["step"].transform("max")
    rows = shown_rows(summary[summary["step"] == last])
    table = bounds_table(rows)
    panels = [*table.groupby("sample_rate")][::-1]
    with style.applied():
        frame = make_frame(
            shape=grid_shape(len(panels)),
            panel_size=_PANEL,
            legend=legend_of(table),
            note=note_of(rows, table),
            sharey=True,
        )
        for axes, (sample_rate, points) in zip(frame.panels(len(panels)), panels, strict=True):
            axes.set_title(f"q = {sample_rate:g}")
            _draw_panel(axes, points)
        _scale_epsilon(frame.panels(len(panels)), table)
        frame.body.supxlabel("noise multiplier σ", fontsize=10)  # noqa: RUF001
        delta = style.number(rows["delta"].iloc[0])
        frame.body.supylabel(f"ε at δ = {delta}", fontsize=10)
    return frame.figure, table


def _draw_panel(axes: Axes, points: pd.DataFrame) -> None:
    draw_bounds(axes, points, x="noise_multiplier")
    axes.set_xscale("log")
    sigmas = points["noise_multiplier"]
    axes.set_xlim(sigmas.min() / 1.2, sigmas.max() * 1.2)
    log_ticks(axes, axis="x")


def _scale_epsilon(panels: list[Axes], table: pd.DataFrame) -> None:
    """Logarithmic, where a factor is a distance; but a bound of 0 needs a linear axis."""
    if (table["epsilon"] > 0).all():
        panels[0].set_yscale("log")
        for axes in panels:
            log_ticks(axes, axis="y")
    else:
        panels[0].set_ylim(bottom=0)
