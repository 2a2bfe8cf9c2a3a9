"""A crafted loss landscape, and the exact densities of the model in both worlds."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpcanary.adversaries.landscape_law import Law, exact_law
from dpcanary.adversaries.loss_landscape import Landscape, Process, process_of
from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.layout import make_frame

_STEPS = (1, 2, 5)  # and the last one
_SETTINGS = ("adjacency", "batch_size", "landscape", "landscape_threshold")
_WORLDS = ("world 0, with the gradient", "world 1")
_POINTS, _LEAST_DENSITY = 401, 1e-4


@style.applied()
def draw_loss_landscape(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws the loss of an audit, and the density of its model after some steps.

    Args:
        summary: of one audit with a crafted landscape.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers: `step` (0 for the loss), `position`, and `loss`, or the
        densities `world0` and `world1`.

    Raises:
        InputError: if the audits are not one, or have no landscape.
    """
    audits = summary["audit"].unique()
    if len(audits) > 1 or summary["landscape"].isna().any():
        raise InputError(f"{len(audits)} audits: this figure shows one, with a crafted landscape")
    first = summary.iloc[0]
    process = process_of(
        {key: first[key] for key in _SETTINGS}, noise_multiplier=float(first["noise_multiplier"])
    )
    steps = sorted({*_STEPS, int(first["num_steps"])} & {*range(1, int(first["num_steps"]) + 1)})
    law = exact_law(process, steps)
    figure, [panels] = make_frame(
        num_panels=1 + len(steps),
        panel_size=(3.3, 2.6),
        legend=[[Line2D([], [], color=c, label=w) for c, w in _colours().items()]],
        notes=[note, _note(first)],
        labels=("position θ / C", ""),
    )
    tables = [_draw_loss(panels[0], process)]
    for index, (axes, step) in enumerate(zip(panels[1:], steps, strict=True)):
        tables.append(_draw_densities(axes, law, index, step))
        axes.axvline(process.landscape.edges[0], color="#7A7A7A", linewidth=0.8, linestyle="--")
    return figure, pd.concat(tables, ignore_index=True)


def _colours() -> dict[str, str]:
    return dict(zip(style.WORLD_COLOURS, _WORLDS, strict=True))


def _draw_loss(axes: Axes, process: Process) -> pd.DataFrame:
    reach = 3 * process.first_noise + 1
    middle = process.landscape.edges[0]
    positions = np.linspace(middle - reach, middle + reach, _POINTS)
    losses = _loss(process.landscape, positions)
    axes.plot(positions, losses, color="black")
    axes.set_title("loss of a batch / (B C²)")
    return pd.DataFrame({"step": 0, "position": positions, "loss": losses})


def _loss(landscape: Landscape, positions: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Minus the integral of the moves, which is 0 at the first edge."""
    edge = landscape.edges[0]
    slopes = np.array(landscape.moves)[np.searchsorted(landscape.edges, positions)]
    return np.asarray(-slopes * (positions - edge))


def _draw_densities(axes: Axes, law: Law, index: int, step: int) -> pd.DataFrame:
    both = law.world0[index], law.world1[index]
    highest = max(both[0].max(), both[1].max())
    [seen] = np.nonzero(np.maximum(*both) > _LEAST_DENSITY * highest)
    kept = np.unique(np.linspace(seen[0], seen[-1], _POINTS).astype(int))
    for density, colour in zip(both, style.WORLD_COLOURS, strict=True):
        axes.plot(law.positions[kept], density[kept], color=colour)
    axes.set_title(f"exact density, step {step}")
    axes.set_ylim(bottom=0.0)
    worlds = {"world0": both[0][kept], "world1": both[1][kept]}
    return pd.DataFrame({"step": step, "position": law.positions[kept], **worlds})


def _note(first: "pd.Series[Any]") -> str:
    return (
        f"Landscape {first['landscape']}, B = {first['batch_size']:g}, σ ="  # noqa: RUF001
        f" {first['noise_multiplier']:g}, adjacency {first['adjacency']}; the dashed line is the"
        " threshold"
    )
