"""The norm of the canary's gradient along training, before it is clipped."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.layout import make_frame
from dpcanary.figures.notes import data_note, number_range, shared_note
from dpcanary.figures.panels import panels_of
from dpcanary.figures.set_ups import SetUp, set_ups_of

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
    clipping = [*dict.fromkeys(rows["max_grad_norm"])]
    label = f"clipping norm C = {' / '.join(f'{norm:g}' for norm in clipping)}"
    places = panels_of(rows, panels)
    hidden = (*panels, *(["max_grad_norm"] if len(clipping) == 1 else []))
    figure, [grid] = make_frame(
        num_panels=len(places),
        panel_size=(5.2, 3.4) if len(places) == 1 else (4.2, 3.1),
        legend=[
            ["mean over models:", *(Line2D([], [], **look, label=one) for one, look in looks.items())],
            [Line2D([], [], **_CLIPPED, label=label)],
        ],
        notes=[
            note,
            "Norm of the canary's gradient at the recorded parameters, before clipping. Bands: mean ±"
            f" 2 standard deviations over {number_range(table['num_runs'])} models of both worlds",
            shared_note(rows, hidden, needed=True),
            data_note(rows),
        ],
        labels=("training step", "norm of the canary's gradient"),
        sharey=True,
    )
    for axes, place in zip(grid, places, strict=True):
        inside = place.of(rows)
        axes.set_title(place.title)
        for norm in inside["max_grad_norm"].unique():
            axes.axhline(norm, **_CLIPPED)
        for one in (one for one in set_ups if one.audits[0] in {*inside["audit"]}):
            of_set_up = table[table["audit"] == one.audits[0]]
            steps, mean = of_set_up["step"], of_set_up["mean"]
            spread = 2 * of_set_up["standard_deviation"]
            look = looks[one.label]
            low = np.maximum(mean - spread, 0.0)
            axes.fill_between(steps, low, mean + spread, color=look["color"], alpha=0.18, lw=0)
            axes.plot(steps, mean, **look)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelleft=True)
    return figure, table


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
