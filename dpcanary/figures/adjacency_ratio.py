"""How much larger epsilon is under substitute than under add/remove adjacency, by accounting."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.layout import Entry, grid_shape, log_ticks, make_frame

# What adding one record and removing another would cost, if epsilons just added up.
_TWICE: dict[str, Any] = {"color": "#7A7A7A", "linestyle": "--", "linewidth": 1.2, "zorder": 2}


def draw_adjacency_ratio(ratios: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate, with a line for each number of steps.

    Args:
        ratios: as `accounting.comparison.compare_adjacencies` gives them; where the ratio is NaN,
            lines have a gap.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers: the ratios.

    Raises:
        InputError: if there is no ratio at all, or deltas differ.
    """
    if ratios["ratio"].isna().all():
        raise InputError("there is no ratio to show: the accountants' log says why")
    if ratios["delta"].nunique() > 1:
        raise InputError("the ratios differ in delta: show them in different figures")
    panels = [*ratios.groupby("sample_rate")][::-1]
    steps = sorted(ratios["num_steps"].unique())
    with style.applied():
        frame = make_frame(
            shape=grid_shape(len(panels)),
            panel_size=(4.2, 3.4),
            legend=_legend(steps),
            notes=[note, _note(ratios)],
            sharey=True,
        )
        for axes, (sample_rate, points) in zip(frame.panels(len(panels)), panels, strict=True):
            axes.set_title(style.setting_name(float(str(sample_rate))))
            _draw_panel(axes, points, steps)
        frame.body.supxlabel("noise multiplier σ", fontsize=10)  # noqa: RUF001
        frame.body.supylabel("substitute ε / add/remove ε", fontsize=10)
    return frame.figure, ratios


def _draw_panel(axes: Axes, points: pd.DataFrame, steps: list[int]) -> None:
    axes.axhline(2.0, **_TWICE)
    for index, count in enumerate(steps):
        line = points[points["num_steps"] == count].sort_values("noise_multiplier")
        options = style.rank_options(index, len(steps))
        axes.plot(line["noise_multiplier"], line["ratio"], **options)
    axes.set_xscale("log")
    log_ticks(axes, axis="x")
    axes.tick_params(labelleft=True)


def _legend(steps: list[int]) -> list[list[Entry]]:
    lines = [
        Entry(f"T = {count:,}", Line2D([], [], **style.rank_options(index, len(steps))))
        for index, count in enumerate(steps)
    ]
    twice = Entry("twice the add/remove ε", Line2D([], [], **_TWICE))
    return [[Entry("training steps:"), *lines, twice]]


def _note(ratios: pd.DataFrame) -> str:
    missing = int(ratios["ratio"].isna().sum())
    methods = sorted({*ratios["accounting_method"]} - {"none"})
    gaps = f"; no accountant could tell {missing} of {len(ratios)} points" if missing else ""
    delta = style.number(float(ratios["delta"].iloc[0]))
    return f"Both ε of the same mechanism at δ = {delta}, accounted by {', '.join(methods)}{gaps}"
