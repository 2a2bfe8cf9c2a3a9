"""How figures look: one colour and marker per canary, one line per accountant, in every figure."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib.colors
import matplotlib.style

from dpcanary.adversaries.adversary import Adversary
from dpcanary.adversaries.catalogue import adversaries, adversary, adversary_names

RASTER_DPI = 200

# For adversaries whose entry names none. The last three of the colours of Okabe and Ito (2008),
# which colour-blind readers can tell apart, then darker ones.
_PALETTE = ("#F0E442", "#8C510A", "#762A83", "#1B7837", "#B2182B", "#4D4D4D")
_MARKERS = ("P", "X", "<", ">", "p", "*")
_RANK_MARKERS = ("o", "s", "^", "D", "v")
# Not a canary's colours: in a histogram, colour tells the worlds apart.
WORLD_COLOURS = ("#56B4E9", "#3A3A3A")
SHADE = "#FBE3D0"

_RC = {
    "figure.dpi": RASTER_DPI,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same everywhere
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # text that stays text in the PDF
}


@dataclass(frozen=True)
class LineStyle:
    """How an accounted curve is drawn, and what it is called.

    Attributes:
        name: as the legend has it.
        colour: of the line.
        dash: matplotlib's line style.
    """

    name: str
    colour: str
    dash: str

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `Axes.plot`."""
        return {"color": self.colour, "linestyle": self.dash, "zorder": 2.5}


ACCOUNTED = {
    "substitute": LineStyle("substitute", "black", "-"),
    "add_remove": LineStyle("add/remove", "black", "--"),
    "group_privacy": LineStyle("group privacy", "#7A7A7A", ":"),
}


def applied() -> AbstractContextManager[None]:
    """A context in which this style alone holds, whatever the user's matplotlibrc says."""
    return matplotlib.style.context(_RC, after_reset=True)


def canary_name(canary: str, score: str | None = None) -> str:
    """The label of an adversary; a score that is not its default is added.

    Example:
        >>> canary_name("worst_case", "transcript")
        'worst case (transcript)'
    """
    entry = adversary(canary)
    if _is_default(entry, score):
        return entry.label
    return f"{entry.label} ({str(score).replace('_', ' ')})"


def canary_colour(canary: str) -> str:
    """The colour that an adversary has in every figure."""
    entry = adversary(canary)
    return entry.colour or _PALETTE[_place_without_style(canary) % len(_PALETTE)]


def canary_options(canary: str, score: str | None = None) -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for an adversary.

    The marker is hollow where the score is not the default.
    """
    entry = adversary(canary)
    marker = entry.marker or _MARKERS[_place_without_style(canary) % len(_MARKERS)]
    options = {"color": canary_colour(canary), "marker": marker, "zorder": 3}
    if not _is_default(entry, score):
        options["markerfacecolor"] = "white"
    return options


def catalogue_order(canary: str, score: str | None) -> tuple[int, int]:
    """Where an adversary and its score come in figures."""
    scores = [known.name for known in adversary(canary).scores]
    return adversary_names().index(canary), scores.index(score) if score else 0


def _is_default(entry: Adversary, score: str | None) -> bool:
    return score is None or score == entry.scores[0].name


def _place_without_style(canary: str) -> int:
    """The place among the adversaries whose entry lacks a colour or a marker."""
    lacking = [entry.name for entry in adversaries() if not (entry.colour and entry.marker)]
    return lacking.index(canary)


def rank_options(rank: int, number: int) -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for a line among several in order, light to dark."""
    place = 0.8 if number == 1 else 0.8 * rank / (number - 1)
    colour = matplotlib.colors.to_hex(matplotlib.colormaps["viridis_r"](0.1 + place))
    return {"color": colour, "marker": _RANK_MARKERS[rank % len(_RANK_MARKERS)], "zorder": 3}


def setting_name(sample_rate: float, noise_multiplier: float | None = None) -> str:
    """A panel's title.

    Example:
        >>> setting_name(0.25, 5.574), setting_name(0.25)
        ('q = 0.25, σ = 5.57', 'q = 0.25')
    """
    noise = "" if noise_multiplier is None else f", σ = {noise_multiplier:.3g}"  # noqa: RUF001
    return f"q = {sample_rate:g}{noise}"


def number(value: float) -> str:
    """A probability as a paper prints it.

    Example:
        >>> number(1e-5), number(2.5e-6), number(0.05)
        ('10⁻⁵', '2.5·10⁻⁶', '0.05')
    """
    if value >= 1e-3:
        return f"{value:g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    factor = f"{float(mantissa):g}"
    return power if factor == "1" else f"{factor}·{power}"
