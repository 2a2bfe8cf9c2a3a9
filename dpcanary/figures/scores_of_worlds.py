"""The scores of one audit, the error rates that they reach, and what the bound says of these."""

from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy.special import ndtr, ndtri

from dpcanary.errors import InputError
from dpcanary.estimation.estimate import EpsilonEstimate
from dpcanary.figures import style
from dpcanary.figures.attacks import Profile
from dpcanary.figures.curves import accounted_false_negative_rate, measured_error_curve
from dpcanary.figures.layout import make_frame
from dpcanary.figures.score_histograms import bin_edges
from dpcanary.files import write_atomically
from dpcanary.scoring.world_scores import WorldScores

SUFFIXES = (".png", ".pdf")
_MEASURED, _BOUND = "#0072B2", "#B2182B"
_GRID = 400


@style.applied()
def draw_scores_of_worlds(scores: WorldScores, bound: EpsilonEstimate, *, name: str) -> Figure:
    """Draws a panel with a histogram of the scores, and one with the measured error rates.

    Args:
        scores: of both worlds.
        bound: from these scores. Its trade-off curve is drawn: by what it says, no attack that
            decides between the worlds has error rates below the true curve, which is at most this.
        name: of the data, for the note.
    """
    valid = "" if bound.is_valid else "NOT VALID: "
    label = f"{valid}bound: ε ≥ {bound.epsilon_lower:.2f} at δ = {bound.delta:g}"
    entries: list[Artist | str] = [
        *(
            Patch(color=colour, alpha=0.7, label=f"world {world}")
            for world, colour in enumerate(style.WORLD_COLOURS)
        ),
        Line2D([], [], color=_MEASURED, label="measured"),
        Line2D([], [], color=_BOUND, linestyle="--", label=label),
        Line2D([], [], color="#8A8A8A", linestyle=":", label="guessing"),
    ]
    figure, [[left, right]] = make_frame(
        num_panels=2,
        panel_size=(4.2, 3.2),
        legend=[entries],
        notes=[
            f"{name}: {len(scores.world0):,} scores of world 0 and {len(scores.world1):,} of world"
            f" 1; rule {bound.threshold_rule}, conversion {bound.conversion.value}, significance"
            f" {bound.significance:g}",
            f"If this holds: {bound.assumption}",
            "Measured error rates have no confidence bounds; the lowest rest on single scores",
        ],
    )
    _draw_histogram(left, scores)
    _draw_error_rates(right, scores, bound)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes a figure.

    Raises:
        InputError: if the file's name does not end in .png or .pdf, or cannot be written.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: figures are {' or '.join(SUFFIXES)} files")
    kind = path.suffix.removeprefix(".")
    write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=style.RASTER_DPI))


def _draw_histogram(axes: Axes, scores: WorldScores) -> None:
    edges = bin_edges(scores.world0, scores.world1)
    for part, colour in zip((scores.world0, scores.world1), style.WORLD_COLOURS, strict=True):
        counts, _ = np.histogram(part, edges)
        axes.stairs(counts, edges, fill=True, color=colour, alpha=0.55, linewidth=0)
        axes.stairs(counts, edges, color=colour)
    axes.set_xlabel("score (higher: world 0)")
    axes.set_ylabel("scores per bin")
    axes.set_title("Scores")


def _draw_error_rates(axes: Axes, scores: WorldScores, bound: EpsilonEstimate) -> None:
    axes.plot([0, 1], [1, 0], color="#8A8A8A", linestyle=":")
    measured = measured_error_curve(scores.world0, scores.world1)
    rates = np.concatenate([[0.0], np.geomspace(1e-6, 1.0, _GRID)])
    axes.plot(rates, _allowed(bound, rates), color=_BOUND, linestyle="--")
    axes.plot(*measured, color=_MEASURED, drawstyle="steps-post")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("false negative rate")
    axes.set_title("Error rates of the attack")


def _allowed(bound: EpsilonEstimate, rates: np.ndarray) -> np.ndarray:
    """The trade-off curve of the bound: Gaussian if its mu is known, else that of its epsilon."""
    if not np.isnan(bound.mu_lower):
        found: np.ndarray = ndtr(-ndtri(rates) - bound.mu_lower)
        return found
    point = Profile(np.array([bound.delta]), np.array([bound.epsilon_lower]))
    return accounted_false_negative_rate(point, rates)
