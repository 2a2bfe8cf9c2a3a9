"""Histograms of both worlds' scores: of a figure's audits, and of one with its error rates."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpcanary.core.printing import confidence_in_words, rounded_down
from dpcanary.figures import style
from dpcanary.figures.attacks import (
    MECHANISM,
    Attack,
    Profile,
    accounted_false_negative_rate,
    first_in_words,
    first_of_place,
    measured_error_curve,
    ordered,
)
from dpcanary.figures.layout import Entry, make_frame
from dpcanary.figures.notes import number_range, rule_in_words
from dpcanary.figures.panels import settings_in_words
from dpcanary.scoring.world_scores import WorldScores

if TYPE_CHECKING:
    from dpcanary.estimation.lower_bound import EpsilonEstimate

_FEWEST_BINS, _MOST_BINS = 10, 50
_MEASURED, _BOUND = "#0072B2", "#B2182B"
_GRID = 400
# Colour and opacity of both worlds in histograms that overlap.
_WORLDS = tuple(zip(style.WORLD_COLOURS, (0.75, 0.5), strict=True))


@style.applied()
def draw_score_histograms(
    attacks: Sequence[Attack], *, note: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draws a row for each canary and a column for each sample rate and noise.

    The table has one row per bin with the scores of each world in it.
    """
    all_attacks, attacks = attacks, ordered(attacks)
    rows = [*dict.fromkeys(attack.series for attack in attacks)]
    columns = sorted({attack.setting for attack in attacks}, key=lambda pair: (-pair[0], pair[1]))
    sizes = [len(attack.world0_scores) + len(attack.world1_scores) for attack in attacks]
    counted = f"{number_range(sizes)} for each audit"
    figure, [panels] = make_frame(
        titles=[""] * (len(rows) * len(columns)),
        columns=len(columns),
        panel_size=(4.2, 1.9 if len(rows) > 1 else 3.0),
        legend=[
            [
                Patch(color=colour, alpha=alpha, label=f"world {world}")
                for world, (colour, alpha) in enumerate(_WORLDS)
            ]
        ],
        notes=[note, f"All scores of {first_in_words(attacks, all_attacks)}, last step: {counted}"],
        labels=("score (higher: world 0)", "scores per bin"),
    )
    for axes in panels:
        axes.set_visible(False)
    tables = [_histogram_table(attack) for attack in attacks]
    for attack, table in zip(attacks, tables, strict=True):
        place = rows.index(attack.series) * len(columns) + columns.index(attack.setting)
        _draw_panel(panels[place], attack, table)
    return figure, pd.concat(tables, ignore_index=True)


def check_rows(rows: pd.DataFrame, **_: object) -> None:
    """Refuses audits with the same canary, score, sample rate and noise."""
    first_of_place(rows.to_dict("records"), MECHANISM)


def _bin_edges(
    world0_scores: NDArray[np.float64], world1_scores: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Edges of bins for the scores of both worlds, whose number follows Rice's rule.

    Infinite scores have no bin. Scores that floats hardly distinguish get bins that floats do.
    """
    scores = np.concatenate([world0_scores, world1_scores])
    bins = int(np.clip(2 * np.cbrt(len(scores)), _FEWEST_BINS, _MOST_BINS))
    finite = scores[np.isfinite(scores)]
    least = 2 * bins * np.spacing(np.abs(finite).max(initial=0.0))
    if len(finite) and (np.ptp(finite) or 1.0) < least:  # where all are equal, the width is 1
        return np.linspace(finite.min() - least, finite.max() + least, bins + 1)
    return np.histogram_bin_edges(finite, bins)


def _histogram_table(attack: Attack) -> pd.DataFrame:
    """Counts of both worlds' scores in the same bins."""
    edges = _bin_edges(attack.world0_scores, attack.world1_scores)
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
        _draw_histogram(axes, table[f"world{world}_scores"], edges, colour, opacity=alpha)
    title = settings_in_words(MECHANISM, attack.row)
    axes.set_title(f"{style.canary_name(*attack.series)}, {title}")
    axes.locator_params(axis="x", nbins=5)
    axes.locator_params(axis="y", nbins=5, integer=True)


def _draw_histogram(axes: Axes, counts: Any, edges: Any, colour: str, *, opacity: float) -> None:
    axes.stairs(counts, edges, fill=True, color=colour, alpha=opacity, linewidth=0)
    axes.stairs(counts, edges, color=colour, linewidth=1.0)


@style.applied()
def draw_scores_of_worlds(
    scores: WorldScores, bound: "EpsilonEstimate", *, name: str, alarm: str = ""
) -> Figure:
    """Draws a panel with a histogram of the scores, and one with the measured error rates.

    The curve of a valid bound is drawn: the Gaussian one that the scores do not refute, or where
    the bound has none, that of (epsilon, delta)-DP, which lies lower. The true curve may lie above
    it at some rates. `name` is that of the data. An `alarm` of the training is printed below.
    """
    of_point = "(ε, δ)-DP of the " * bool(np.isnan(bound.mu_lower))
    label = f"{of_point}bound: ε ≥ {rounded_down(bound.epsilon_lower)} at δ = {bound.delta:g}"
    entries: list[Entry] = [
        *(
            Patch(color=colour, alpha=0.7, label=f"world {world}")
            for world, colour in enumerate(style.WORLD_COLOURS)
        ),
        {"color": _MEASURED, "label": "measured"},
        *([{"color": _BOUND, "linestyle": "--", "label": label}] if bound.is_valid else []),
        {"color": "#8A8A8A", "linestyle": ":", "label": "guessing"},
    ]
    figure, [[left, right]] = make_frame(
        titles=["Scores", "Error rates of the attack"],
        panel_size=(4.2, 3.2),
        legend=[entries],
        notes=[
            alarm,
            f"{name}: {len(scores.world0):,} scores of world 0 and {len(scores.world1):,} of world"
            f" 1; {rule_in_words(str(bound.threshold_rule))}, {bound.conversion.value} conversion,"
            f" {confidence_in_words(bound.significance)} confidence"
            if bound.is_valid
            else f"{name}: no valid bound, {bound.assumption}",
        ],
        caption=[f"The bound assumes: {bound.assumption}."] if bound.is_valid else [],
    )
    edges = _bin_edges(scores.world0, scores.world1)
    for part, colour in zip((scores.world0, scores.world1), style.WORLD_COLOURS, strict=True):
        _draw_histogram(left, np.histogram(part, edges)[0], edges, colour, opacity=0.55)
    left.set(xlabel="score (higher: world 0)", ylabel="scores per bin")
    _draw_error_rates(right, scores, bound)
    return figure


def _draw_error_rates(axes: Axes, scores: WorldScores, bound: "EpsilonEstimate") -> None:
    axes.plot([0, 1], [1, 0], color="#8A8A8A", linestyle=":")
    measured = measured_error_curve(scores.world0, scores.world1)
    rates = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, _GRID)])
    if bound.is_valid:
        axes.plot(rates, _allowed(bound, rates), color=_BOUND, linestyle="--")
    axes.plot(*measured, color=_MEASURED, drawstyle="steps-post")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set(xlabel="false positive rate", ylabel="false negative rate")


def _allowed(bound: "EpsilonEstimate", rates: np.ndarray) -> np.ndarray:
    """The trade-off curve of the bound: Gaussian if its mu is known, else that of its epsilon."""
    if not np.isnan(bound.mu_lower):
        return ndtr(-ndtri(rates) - bound.mu_lower)
    point = Profile(np.array([bound.delta]), np.array([bound.epsilon_lower]))
    return accounted_false_negative_rate(point, rates)
