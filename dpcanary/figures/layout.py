"""A grid of panels above one legend and one line that states what the numbers assume."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

# Inches: wider than this, text is too small where a page or a screen shrinks the figure.
_SMALLEST_WIDTH, _LARGEST_WIDTH = 8.2, 10.2
_MOST_COLUMNS = 3
# Inches.
_LEGEND_ROW, _NOTE_LINE, _GAP = 0.23, 0.19, 0.08
_NOTE_SIZE, _NOTE_CHARACTERS = 8.5, 14.5  # points; characters of that size per inch
# A note is the user's text: a dollar sign in it begins no formula.
_NOTE_OPTIONS: dict[str, Any] = {
    "ha": "center", "va": "bottom", "fontsize": _NOTE_SIZE, "color": "#444444", "parse_math": False,
}  # fmt: skip
_LEGEND_SIZE = 9.5
_LABEL_ROOM = 0.15  # of an axis' length
_HEADING, _HEADING_SIZE = 0.3, 10.5  # inches, points
# As `_fill_footer` sets them, in units of the legend's font size.
_HANDLE, _HANDLE_GAP, _COLUMN_GAP = 2.0, 0.6, 1.2


@dataclass(frozen=True)
class Entry:
    """A line of the legend.

    Attributes:
        label: its words.
        handle: an artist that looks like what it stands for; None for a heading.
    """

    label: str
    handle: Artist | None = None


@dataclass(frozen=True)
class Frame:
    """A figure that waits for its panels to be filled.

    Attributes:
        figure: the whole.
        body: the part with the panels.
        blocks: the same grid of panels once for each heading; shape (rows, columns) each.
    """

    figure: Figure
    body: SubFigure
    blocks: Sequence[NDArray[Any]]

    @property
    def axes(self) -> NDArray[Any]:
        """The first grid of panels; shape (rows, columns)."""
        return self.blocks[0]

    def panels(self, count: int, *, block: int = 0) -> list[Axes]:
        """The first panels of a block, row by row; the others of its grid are hidden."""
        flat: list[Axes] = list(self.blocks[block].flat)
        for unused in flat[count:]:
            unused.set_visible(False)
        return flat[:count]


def grid_shape(num_panels: int) -> tuple[int, int]:
    """(rows, columns) for panels in reading order.

    Example:
        >>> grid_shape(2), grid_shape(4), grid_shape(5)
        ((1, 2), (2, 2), (2, 3))
    """
    rows = -(-num_panels // _MOST_COLUMNS)
    return rows, -(-num_panels // rows)


def make_frame(
    *,
    shape: tuple[int, int],
    panel_size: tuple[float, float],
    legend: Sequence[Sequence[Entry]],
    notes: Sequence[str],
    headings: Sequence[str] = ("",),
    **subplot_options: Any,
) -> Frame:
    """Lays out panels, legend and notes so that none can overlap.

    Args:
        shape: (rows, columns) of the panels.
        panel_size: (width, height) of one, in inches; narrower where many stand side by side.
        legend: groups of entries; each group starts a row.
        notes: what a reader must know; each starts a line and is wrapped to the figure's width.
        headings: of grids of panels, all of this shape; one above the other, or side by side if
            they are single panels.
        **subplot_options: go to `SubFigure.subplots`, for every grid.
    """
    down, across = (1, len(headings)) if shape == (1, 1) else (len(headings), 1)
    wanted = across * shape[1] * panel_size[0] + 0.6
    width = min(max(_SMALLEST_WIDTH, wanted), _LARGEST_WIDTH)
    rows = [row for group in legend for row in _packed(group, width - 0.1)]
    lines = [line for note in notes for line in _wrapped(note, int(width * _NOTE_CHARACTERS))]
    footer = len(rows) * _LEGEND_ROW + len(lines) * _NOTE_LINE + 2.5 * _GAP
    body_height = 0.5 + down * (shape[0] * panel_size[1] + _HEADING * any(headings))
    figure = Figure(figsize=(width, body_height + footer), layout="constrained")
    body, below = figure.subfigures(2, 1, height_ratios=[body_height, footer], squeeze=False).flat
    _fill_footer(below, rows, lines, height=footer)
    blocks = [
        part.subplots(*shape, squeeze=False, **subplot_options)
        for part in _headed_parts(body, headings, (down, across))
    ]
    return Frame(figure=figure, body=body, blocks=blocks)


def _headed_parts(
    body: SubFigure, headings: Sequence[str], shape: tuple[int, int]
) -> list[SubFigure]:
    """The body itself, or a part of it for each heading."""
    parts: list[SubFigure] = [body]
    if len(headings) > 1:
        parts = [*body.subfigures(*shape, squeeze=False).flat]
    for part, heading in zip(parts, headings, strict=True):
        if heading:
            part.suptitle(heading, fontsize=_HEADING_SIZE, fontweight="bold")
    return parts


def _packed(entries: Sequence[Entry], width: float) -> list[list[Entry]]:
    """Entries in rows that are no wider than `width` inches."""
    rows: list[list[Entry]] = [[]]
    spacing = (_HANDLE + _HANDLE_GAP + _COLUMN_GAP) * _LEGEND_SIZE / 72
    used = 0.0
    for entry in entries:
        needed = _text_width(entry.label) + spacing
        if rows[-1] and used + needed > width:
            rows.append([])
            used = 0.0
        rows[-1].append(entry)
        used += needed
    return rows if entries else []


def _wrapped(text: str, width: int) -> list[str]:
    """As few lines as `width` characters allow, and about equally long; none for no text."""
    fewest = len(textwrap.wrap(text, width))
    if not fewest:
        return []
    return next(
        lines
        for shorter in range(len(text) // fewest, width + 1)
        if len(lines := textwrap.wrap(text, shorter)) == fewest
    )


def _text_width(text: str) -> float:
    path = TextPath((0, 0), text, size=_LEGEND_SIZE, prop=FontProperties(family="DejaVu Sans"))
    return float(path.get_extents().width) / 72


def _fill_footer(
    footer: SubFigure, rows: Sequence[Sequence[Entry]], lines: Sequence[str], *, height: float
) -> None:
    for index, row in enumerate(rows):
        legend = footer.legend(
            handles=[entry.handle or Line2D([], [], linestyle="none") for entry in row],
            labels=[entry.label for entry in row],
            loc="upper center",
            bbox_to_anchor=(0.5, 1 - (_GAP + index * _LEGEND_ROW) / height),
            ncols=len(row),
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=_HANDLE,
            handletextpad=_HANDLE_GAP,
            columnspacing=_COLUMN_GAP,
        )
        for entry, text in zip(row, legend.get_texts(), strict=True):
            text.set_fontstyle("normal" if entry.handle else "italic")
    bottom = (_GAP + (len(lines) - 1) * _NOTE_LINE) / height
    for index, line in enumerate(lines):
        y = bottom - index * _NOTE_LINE / height
        footer.text(0.5, y, line, **_NOTE_OPTIONS)


def log_ticks(axes: Axes, *, axis: str) -> None:
    """Plain numbers at 1, 2 and 5 times powers of ten, on a logarithmic axis."""
    chosen = axes.xaxis if axis == "x" else axes.yaxis
    chosen.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    chosen.set_minor_locator(LogLocator(subs=range(1, 10), numticks=20))
    chosen.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    chosen.set_minor_formatter(NullFormatter())


def value_ticks(axes: Axes, values: Iterable[float]) -> None:
    """Ticks at the values that were measured, on a logarithmic x axis; labels where there is room.

    Args:
        axes: the panel.
        values: at least one, positive.
    """
    places = {*map(float, values)}
    low, high = min(places), max(places)
    margin = max((high / low) ** 0.05, 1.15)
    labelled = _labelled(places, needed=(high / low) ** _LABEL_ROOM)
    axes.set_xscale("log")
    axes.set_xlim(low / margin, high * margin)
    axes.xaxis.set_major_locator(FixedLocator(sorted(labelled)))
    axes.xaxis.set_minor_locator(FixedLocator(sorted(places - labelled)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _labelled(places: set[float], *, needed: float) -> set[float]:
    """The ends, then round numbers, then others, as long as a factor `needed` lies between two."""
    ends = {min(places), max(places)}
    rounds = {"1": 0, "5": 1, "2": 2}
    chosen = set(ends)
    for place in sorted(places - ends, key=lambda value: (rounds.get(_digits(value), 3), value)):
        if all(max(place / other, other / place) >= needed for other in chosen):
            chosen.add(place)
    return chosen


def _digits(value: float) -> str:
    """A number's digits without its power of ten; one for round numbers."""
    return f"{value:.9e}".split("e")[0].replace(".", "").rstrip("0")
