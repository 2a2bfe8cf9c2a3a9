"""How much of epsilon is left at the last step, by noise and batch size."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpcanary.errors import InputError
from dpcanary.estimation.settings import Conversion
from dpcanary.figures import style
from dpcanary.figures.hidden_state import ratios_table
from dpcanary.figures.layout import make_frame

# Columns of the summary, and the headings of their panels.
_PANELS = {
    "epsilon_lower": "audited, GDP conversion",
    "epsilon_hidden_state_gdp": "exact μ, as if Gaussian",
    "epsilon_hidden_state": "exact, no assumption",
}
_COLOURS, _DARK = "viridis", 0.6


@style.applied()
def draw_amplification(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws heatmaps of epsilon at the last step over epsilon at the first one.

    Args:
        summary: of audits whose exact law is known, with several recorded steps.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers: noise_multiplier, batch_size, and the ratio of each column.

    Raises:
        InputError: see `hidden_state.checked_rows`; also if only one step was recorded.
    """
    rows = summary[summary["conversion"] == Conversion.GDP]
    if rows["step"].nunique() < 2:
        raise InputError("only one step was recorded: there is no ratio to show")
    ratios = ratios_table(rows, [*_PANELS])
    first, last = rows["step"].min(), rows["step"].max()
    figure, [panels] = make_frame(
        num_panels=len(_PANELS),
        panel_size=(3.3, 3.6),
        legend=[],
        notes=[note, _note(rows)],
        labels=("batch size B", "noise multiplier σ"),  # noqa: RUF001
    )
    for axes, (column, heading) in zip(panels, _PANELS.items(), strict=True):
        axes.set_title(f"ε at step {last} / ε at step {first}\n{heading}")
        _draw_panel(axes, ratios[column].unstack("batch_size"))
    return figure, ratios.reset_index()


def _draw_panel(axes: Axes, ratios: pd.DataFrame) -> None:
    axes.imshow(ratios, cmap=_COLOURS, vmin=0.0, vmax=1.0, aspect="auto", origin="lower")
    for row, values in enumerate(ratios.to_numpy()):
        for column, value in enumerate(values):
            colour = "white" if value < _DARK else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    axes.set_xticks(range(ratios.shape[1]), [f"{size:g}" for size in ratios.columns])
    axes.set_yticks(range(ratios.shape[0]), [f"{noise:g}" for noise in ratios.index])
    axes.grid(visible=False)


def _note(rows: pd.DataFrame) -> str:
    return (
        f"Audited: mean bounds of {rows['repeat'].nunique()} repeats of R ="
        f" {rows['num_runs'].max():,} runs; ratios of bounds are no bounds. ε at δ ="
        f" {style.number(rows['delta'].iloc[0])}; 1 means that nothing is lost by hiding the models"
        " of the steps before"
    )
