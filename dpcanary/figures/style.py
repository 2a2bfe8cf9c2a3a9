"""How figures look: one colour and marker per canary, one line per accountant, in every figure."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib.colors
import matplotlib.style

from dpcanary.vocabulary import SCORES_OF, Canary, Score

RASTER_DPI = 200

# The colours of Okabe and Ito (2008), which colour-blind readers can tell apart.
_COLOURS = {
    Canary.WORST_CASE: "#E69F00",
    Canary.GRADIENT: "#0072B2",
    Canary.CRAFTED_INPUT: "#D55E00",
    Canary.MISLABELED: "#009E73",
    Canary.NATURAL: "#CC79A7",
}
_MARKERS = {
    Canary.WORST_CASE: "v",
    Canary.GRADIENT: "o",
    Canary.CRAFTED_INPUT: "s",
    Canary.MISLABELED: "^",
    Canary.NATURAL: "D",
}
_CANARY_NAMES = {
    Canary.WORST_CASE: "worst case",
    Canary.GRADIENT: "gradient",
    Canary.CRAFTED_INPUT: "crafted input",
    Canary.MISLABELED: "mislabeled",
    Canary.NATURAL: "natural",
}
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


def canary_name(canary: Canary, score: Score | None = None) -> str:
    """A canary in words; a score that is not the canary's default is added.

    Example:
        >>> canary_name(Canary.WORST_CASE, Score.TRANSCRIPT)
        'worst case (transcript)'
    """
    name = _CANARY_NAMES[canary]
    if score is None or score is SCORES_OF[canary][0]:
        return name
    return f"{name} ({score.value.replace('_', ' ')})"


def canary_colour(canary: Canary) -> str:
    """The colour that a canary has in every figure."""
    return _COLOURS[canary]


def canary_options(canary: Canary, score: Score | None = None) -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for a canary; hollow where the score is not the default."""
    options = {"color": _COLOURS[canary], "marker": _MARKERS[canary], "zorder": 3}
    if score is not None and score is not SCORES_OF[canary][0]:
        options["markerfacecolor"] = "white"
    return options


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
