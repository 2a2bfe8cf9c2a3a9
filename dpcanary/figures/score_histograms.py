"""Histograms of both worlds' scores: how far an attack tells the worlds apart."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dpcanary.figures import style
from dpcanary.figures.attacks import Attack, ordered, settings_of
from dpcanary.figures.layout import make_frame
from dpcanary.figures.notes import number_range

_FEWEST_BINS, _MOST_BINS = 10, 50
_LABELS = ("world 0", "world 1")
# Colour and opacity of both worlds.
_WORLDS = tuple(zip(style.WORLD_COLOURS, (0.75, 0.5), strict=True))


@style.applied()
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
    sizes = [len(attack.world0_scores) + len(attack.world1_scores) for attack in attacks]
    counted = f"{number_range(sizes)} for each audit"
    figure, [panels] = make_frame(
        num_panels=len(rows) * len(columns),
        columns=len(columns),
        panel_size=(4.2, 1.9 if len(rows) > 1 else 3.0),
        legend=[
            [
                Patch(color=colour, alpha=alpha, label=label)
                for (colour, alpha), label in zip(_WORLDS, _LABELS, strict=True)
            ]
        ],
        notes=[note, f"All scores of the first repeat after the last step: {counted}"],
        labels=("score (higher: world 0)", "scores per bin"),
    )
    for axes in panels:
        axes.set_visible(False)
    tables = [_histogram_table(attack) for attack in attacks]
    for attack, table in zip(attacks, tables, strict=True):
        place = rows.index(attack.series) * len(columns) + columns.index(attack.setting)
        _draw_panel(panels[place], attack, table)
    return figure, pd.concat(tables, ignore_index=True)


def bin_edges(
    world0_scores: NDArray[np.float64], world1_scores: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Edges of bins for the scores of both worlds, whose number follows Rice's rule.

    Infinite scores have no bin.
    """
    scores = np.concatenate([world0_scores, world1_scores])
    bins = int(np.clip(2 * np.cbrt(len(scores)), _FEWEST_BINS, _MOST_BINS))
    edges: NDArray[np.float64] = np.histogram_bin_edges(scores[np.isfinite(scores)], bins)
    return edges


def _histogram_table(attack: Attack) -> pd.DataFrame:
    """Counts of both worlds' scores in the same bins."""
    edges = bin_edges(attack.world0_scores, attack.world1_scores)
    return pd.DataFrame(
        {
            "audit": attack.audit,
            "canary": attack.canary,
            "sample_rate": attack.sample_rate,
            "noise_multiplier": attack.noise_multiplier,
            "step": attack.step,
            "bin_left": edges[:-1],
            "bin_right": edges[1:],
            "world0_scores": np.histogram(attack.world0_scores, edges)[0],
            "world1_scores": np.histogram(attack.world1_scores, edges)[0],
        }
    )


def _draw_panel(axes: Axes, attack: Attack, table: pd.DataFrame) -> None:
    axes.set_visible(True)
    edges = [*table["bin_left"], table["bin_right"].iloc[-1]]
    for world, (colour, alpha) in enumerate(_WORLDS):
        counts = table[f"world{world}_scores"]
        axes.stairs(counts, edges, fill=True, color=colour, alpha=alpha, linewidth=0)
        axes.stairs(counts, edges, color=colour, linewidth=1.0)
    axes.set_title(f"{style.canary_name(*attack.series)}, {attack.title}")
    axes.locator_params(axis="y", nbins=5, integer=True)
