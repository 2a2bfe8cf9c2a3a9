"""The norm of the canary's gradient along training, before it is clipped."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.layout import make_frame
from dpcanary.figures.notes import data_note, number_range, shared_note
from dpcanary.figures.panels import SetUp, panels_of, set_ups_of

# For each recorded step, the norms of all runs.
Norms = Mapping[int, NDArray[np.float64]]
_CLIPPED: dict[str, Any] = {"color": "#7A7A7A", "linestyle": "--", "linewidth": 1.2, "zorder": 2}


@style.applied()
def draw_gradient_norm(
    norms: Mapping[str, Norms],
    summary: pd.DataFrame,
    *,
    note: str = "",
    panels: Sequence[str] = (),
) -> tuple[Figure, pd.DataFrame]:
    """Draws a line for each set-up, a band of two standard deviations, and the clipping norm.

    Args:
        norms: by audit.
        summary: has the settings of these audits.
        note: what a reader must know; printed below.
        panels: the settings that tell panels apart; by default there is one panel.

    Returns:
        The figure, and its numbers: one row per step of a set-up, with the `mean` and
        `standard_deviation` over the runs of all repeats and both worlds.

    Raises:
        InputError: if there is no audit, if the summary lacks one, or see `set_ups_of`.
    """
    rows = summary[summary["audit"].isin([*norms])].drop_duplicates("audit")
    if rows.empty or len(rows) < len(norms):
        raise InputError("the summary lacks an audit of the figure: delete it and run again")
    set_ups = set_ups_of(rows, panels)
    looks = _looks(set_ups)
    table = pd.concat([_table(one, norms) for one in set_ups], ignore_index=True)
    places = panels_of(rows, panels)
    figure, [grid] = make_frame(
        num_panels=len(places),
        panel_size=(5.2, 3.4) if len(places) == 1 else (4.2, 3.1),
        legend=_legend(set_ups, looks),
        notes=[
            note,
            "Norm of the canary's gradient at the recorded parameters, before clipping. Bands: mean"
            f" ± 2 standard deviations over {number_range(table['num_runs'])} models of both"
            " worlds",
            shared_note(rows, (*panels, "max_grad_norm"), needed=True),
            data_note(rows),
        ],
        labels=("training step", "norm of the canary's gradient"),
        sharey=True,
    )
    for axes, place in zip(grid, places, strict=True):
        axes.set_title(place.title)
        inside = {*place.of(rows)["audit"]}
        _draw_panel(axes, [one for one in set_ups if one.audits[0] in inside], table, looks)
    for axes in grid:  # after all, because they share their scale
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelleft=True)
    return figure, table


def _legend(set_ups: Sequence[SetUp], looks: Mapping[str, dict[str, Any]]) -> list[list[Any]]:
    norms = dict.fromkeys(f"{one.rows['max_grad_norm'].iloc[0]:g}" for one in set_ups)
    clipped = Line2D([], [], **_CLIPPED, label=f"clipping norm C = {' / '.join(norms)}")
    lines = [Line2D([], [], **look, label=label) for label, look in looks.items()]
    return [["mean over models:", *lines], [clipped]]


def _draw_panel(
    axes: Axes,
    set_ups: Sequence[SetUp],
    table: pd.DataFrame,
    looks: Mapping[str, dict[str, Any]],
) -> None:
    for set_up in set_ups:
        points, look = table[table["audit"] == set_up.audits[0]], looks[set_up.label]
        steps, mean, spread = points["step"], points["mean"], 2 * points["standard_deviation"]
        low, high = np.maximum(mean - spread, 0.0), mean + spread
        axes.axhline(float(points["max_grad_norm"].iloc[0]), **_CLIPPED)
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.18, linewidth=0)
        axes.plot(steps, mean, **look)


def _looks(set_ups: Sequence[SetUp]) -> dict[str, dict[str, Any]]:
    """The look of each label; set-ups of different panels may share one."""
    labels = [*dict.fromkeys(one.label for one in set_ups)]
    return {label: style.rank_options(rank, len(labels)) for rank, label in enumerate(labels)}


def _table(set_up: SetUp, norms: Mapping[str, Norms]) -> pd.DataFrame:
    first = set_up.rows.iloc[0]
    steps = {tuple(norms[audit]) for audit in set_up.audits}
    assert len(steps) == 1  # audits of one configuration record the same steps
    rows = []
    for step in steps.pop():
        values = np.concatenate([norms[audit][step] for audit in set_up.audits])
        rows.append(
            {
                "audit": set_up.audits[0],
                "label": set_up.label,
                "model": first["model"],
                "max_grad_norm": first["max_grad_norm"],
                "step": step,
                "mean": values.mean(),
                "standard_deviation": values.std(ddof=1),
                "num_runs": len(values),
            }
        )
    return pd.DataFrame(rows)
