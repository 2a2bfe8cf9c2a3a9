"""Style of all figures: each canary has one colour and marker, each accounted curve one line.

Matplotlib is imported where it is needed: what is not a figure uses names and captions alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpcanary.adversaries.adversary import Adversary
from dpcanary.adversaries.catalogue import adversaries, adversary, adversary_names
from dpcanary.core.adjacency import ADJACENCIES, Adjacency

RASTER_DPI = 200

# For adversaries whose entry has no colour or marker: none of the catalogue's, and far from them.
PALETTE = ("#0069FF", "#00B400", "#5A003C", "#FF1EF0", "#FB8072", "#000087")
# Marker tuples are (points, 1, angle) for stars and (corners, 0, angle) for polygons.
MARKERS: tuple[Any, ...] = ("d", (4, 1, 0), "8", (6, 1, 0), (3, 1, 0), (4, 1, 45))
_SIZE_OF_STARS = 7.0  # their points are thin
_RANK_MARKERS = ("o", "s", "^", "D", "v")
# Variants of a canary have other dashes, and the last one's colour goes so far to white or, where
# the canary's own is light, to black.
_DASHES = ("-", "--", ":", "-.")
_MOST_MIXED = 0.55
# No canary has these colours: in a histogram, they stand for the worlds.
WORLD_COLOURS = ("#56B4E9", "#3A3A3A")
# Hatched, since the bands of canaries are plain.
SHADED: dict[str, Any] = {
    "facecolor": "none", "edgecolor": "#CCCCCC", "hatch": "//", "linewidth": 0.0,
}  # fmt: skip

_RC = {
    "figure.dpi": RASTER_DPI,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so figures are the same everywhere
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
    "pdf.fonttype": 42,  # text in the PDF stays text
}

Styles = dict[str, dict[str, Any]]
# Keyword arguments of `Axes.plot` for each accounted curve.
ACCOUNTED: Styles = {
    "substitute": {"label": "substitute", "color": "black", "linestyle": "-", "zorder": 2.5},
    "add_remove": {"label": "add/remove", "color": "black", "linestyle": "--", "zorder": 2.5},
    "group_privacy": {
        "label": "group privacy", "color": "#7A7A7A", "linestyle": ":", "zorder": 2.5,
    },
}  # fmt: skip
# Keyword arguments for the curve of what the last model would reveal under linear losses.
HEURISTIC: dict[str, Any] = {
    "label": "heuristic for the last model, linear losses", "color": "#B2182B", "linestyle": "-.",
    "zorder": 2.6,
}  # fmt: skip
# Keyword arguments for the curves of what is exactly known of the final model.
EXACT: Styles = {
    "hidden_state": {
        "label": "exact, final model only (no assumption)", "color": "#B2182B", "linestyle": "-.",
        "zorder": 2.6,
    },
    "hidden_state_gdp": {
        "label": "Gaussian curve of the largest μ", "color": "#1B7837", "linestyle": ":",
        "zorder": 2.6,
    },
}  # fmt: skip


@contextmanager
def applied() -> Iterator[None]:
    """A context or decorator with this style, whatever the user's matplotlibrc says."""
    from matplotlib.style import context

    with context(_RC, after_reset=True):
        yield


def canary_name(canary: str, score: str | None = None) -> str:
    """The label of an adversary; a score other than its default is added.

    Example:
        >>> canary_name("worst_case", "transcript")
        'worst case (score: transcript)'
    """
    entry = adversary(canary)
    if _is_default(entry, score):
        return entry.label
    return f"{entry.label} (score: {str(score).replace('_', ' ')})"


def canary_colour(canary: str) -> str:
    """The colour of an adversary in all figures."""
    return adversary(canary).colour or PALETTE[_place_without_style(canary) % len(PALETTE)]


def canary_options(canary: str, score: str | None = None) -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for an adversary, with its label.

    The marker is hollow if the score is not the default.
    """
    entry = adversary(canary)
    colour = canary_colour(canary)
    size = {} if entry.marker else {"markersize": _SIZE_OF_STARS}
    return size | {
        "label": canary_name(canary, score),
        "color": colour,
        "marker": entry.marker or MARKERS[_place_without_style(canary) % len(MARKERS)],
        "markerfacecolor": colour if _is_default(entry, score) else "white",
        "zorder": 3,
    }


def variant_options(
    canary: str, score: str | None, variant: str, *, rank: int, number: int
) -> dict[str, Any]:
    """The options of one of `number` variants of an adversary, which have a family of colours.

    Variants differ in lightness, dashes and markers. The first one, or a single one, looks like
    the adversary itself. `variant` is in words, for the label, and may be empty.
    """
    options = canary_options(canary, score)
    if variant:
        base, _, of_score = options["label"].partition(" (")
        words = [*([of_score.removesuffix(")")] if of_score else []), variant]
        options["label"] = f"{base} ({', '.join(words)})"
    if rank == 0:
        return options
    mixture = _mixed(options["color"], _MOST_MIXED * rank / (number - 1))
    hollow = options["markerfacecolor"] == "white"
    markers = [
        options["marker"],
        *(marker for marker in _RANK_MARKERS if marker != options["marker"]),
    ]
    return options | {
        "color": mixture,
        "markerfacecolor": "white" if hollow else mixture,
        "marker": markers[rank % len(markers)],
        "linestyle": _DASHES[rank % len(_DASHES)],
    }


def _mixed(colour: str, part: float) -> str:
    """A dark colour with a part of white, or a light one with a part of black."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = to_rgb(colour)
    other = 0.0 if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else 1.0
    mixed = [(1 - part) * part_of_colour + part * other for part_of_colour in (red, green, blue)]
    return to_hex((mixed[0], mixed[1], mixed[2]))


def catalogue_order(canary: str, score: str | None) -> tuple[int, int]:
    """The place of an adversary and its score in figures."""
    scores = [score.name for score in adversary(canary).scores]
    return adversary_names().index(canary), scores.index(score) if score else 0


def _is_default(entry: Adversary, score: str | None) -> bool:
    return score is None or score == entry.scores[0].name


def _place_without_style(canary: str) -> int:
    """The place among the adversaries whose entry lacks a colour or a marker."""
    lacking = [
        entry.name for entry in adversaries().values() if not (entry.colour and entry.marker)
    ]
    return lacking.index(canary)


def ranked(values: Iterable[Any], label: Callable[[Any], str] = str) -> dict[Any, dict[str, Any]]:
    """Keyword arguments of `Axes.plot` for ordered lines, from light to dark, by what they show."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    lines = [*dict.fromkeys(values)]
    shades = np.linspace(0.1, 0.9, len(lines)) if len(lines) > 1 else [0.9]
    return {
        value: {
            "color": to_hex(colormaps["viridis_r"](place)),
            "marker": _RANK_MARKERS[rank % len(_RANK_MARKERS)],
            "zorder": 3,
            "label": label(value),
        }
        for rank, (value, place) in enumerate(zip(lines, shades, strict=True))
    }


def accounted_styles(names: Sequence[str], audited: Iterable[str]) -> Styles:
    """Keyword arguments of `plot` for each accounted curve, of audits of these adjacencies.

    Audits of membership alone are bounded by the add/remove curve, so it is the only one and solid.
    """
    adjacencies = sorted({*audited})
    if Adjacency.SUBSTITUTE in adjacencies:
        return {name: ACCOUNTED[name] for name in names}
    words = " and ".join(ADJACENCIES[name] for name in adjacencies)
    return {"add_remove": ACCOUNTED["add_remove"] | {"linestyle": "-", "label": words}}


def accounted_of_panel(styles: Styles, audited: Iterable[str]) -> Styles:
    """The curves of a panel. Audits of membership have one: that of their own adjacency."""
    if Adjacency.SUBSTITUTE in {*audited}:
        return styles
    return {name: options for name, options in styles.items() if name == "add_remove"}


def accounted_legend(heading: str, styles: Styles, audited: Iterable[str]) -> list[Any]:
    """The group of a legend for these curves; nothing if there is none."""
    of_audits = "" if Adjacency.SUBSTITUTE in {*audited} else ", audited adjacency"
    return [f"{heading}{of_audits}:", *styles.values()] if styles else []


def number(value: float) -> str:
    """A probability in the notation of papers.

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
