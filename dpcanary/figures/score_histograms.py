"""Histograms of both worlds' scores: how far an attack tells them apart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dpcanary.figures import style
from dpcanary.figures.attacks import Attack, ordered, settings_of
from dpcanary.figures.layout import Entry, make_frame

_FEWEST_BINS, _MOST_BINS = 10, 50
_LEGEND = [
    [
        Entry("world 0 (target record)", Patch(color=style.WORLD_COLOURS[0], alpha=0.75)),
        Entry("world 1 (substitute)", Patch(color=style.WORLD_COLOURS[1], alpha=0.5)),
    ]
]


def draw_score_histograms(
    attacks: Sequence[Attack], *, note: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draws a row for each canary and a column for each sample rate and noise.

    Args:
        attacks: at least one.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers: one row per bin with the scores of each world in it.

    Raises:
        InputError: if there is no attack or two could not be told apart.
    """
    attacks = ordered(attacks)
    rows, columns = list(dict.fromkeys(attack.series for attack in attacks)), settings_of(attacks)
    tables = [histogram_table(attack) for attack in attacks]
    with style.applied():
        frame = make_frame(
            shape=(len(rows), len(columns)),
            panel_size=(4.2, 1.9 if len(rows) > 1 else 3.0),
            legend=_LEGEND,
            notes=[note, _note(attacks)],
        )
        _hide_empty(frame.axes)
        for attack, table in zip(attacks, tables, strict=True):
            axes = frame.axes[rows.index(attack.series), columns.index(attack.setting)]
            _draw_panel(axes, attack, table)
        frame.body.supxlabel("score (higher: world 0)", fontsize=10)
        frame.body.supylabel("scores per bin", fontsize=10)
    return frame.figure, pd.concat(tables, ignore_index=True)


def histogram_table(attack: Attack) -> pd.DataFrame:
    """Counts of both worlds' scores in the same bins."""
    edges = _bin_edges(np.concatenate([attack.world0_scores, attack.world1_scores]))
    return pd.DataFrame(
        {
            "audit": attack.audit,
            "canary": attack.canary,
            "sample_rate": attack.sample_rate,
            "noise_multiplier": attack.noise_multiplier,
            "step": attack.step,
            "bin_left": edges[:-1],
            "bin_right": edges[1:],
            "world0_models": np.histogram(attack.world0_scores, edges)[0],
            "world1_models": np.histogram(attack.world1_scores, edges)[0],
        }
    )


def _bin_edges(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Equal bins over all scores; their number grows with the cube root (Rice's rule)."""
    number = int(np.clip(2 * np.cbrt(len(scores)), _FEWEST_BINS, _MOST_BINS))
    return np.histogram_bin_edges(scores, bins=number)


def _draw_panel(axes: Axes, attack: Attack, table: pd.DataFrame) -> None:
    axes.set_visible(True)
    edges = [*table["bin_left"], table["bin_right"].iloc[-1]]
    for world, alpha in ((0, 0.75), (1, 0.5)):
        counts, colour = table[f"world{world}_models"], style.WORLD_COLOURS[world]
        axes.stairs(counts, edges, fill=True, color=colour, alpha=alpha, linewidth=0)
        axes.stairs(counts, edges, color=colour, linewidth=1.0)
    name, setting = style.canary_name(*attack.series), style.setting_name(*attack.setting)
    axes.set_title(f"{name}, {setting}")
    axes.locator_params(axis="y", nbins=5, integer=True)


def _hide_empty(grid: NDArray[Any]) -> None:
    for axes in grid.flat:
        axes.set_visible(False)


def _note(attacks: Sequence[Attack]) -> str:
    sizes = sorted({len(attack.world0_scores) + len(attack.world1_scores) for attack in attacks})
    counts = " to ".join(f"{size:,}" for size in dict.fromkeys([sizes[0], sizes[-1]]))
    return f"All scores of the first repeat after the last step: {counts} for each audit"
