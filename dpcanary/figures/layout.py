"""Layout of all figures: panels, below them one legend, and below the legend the notes."""

import textwrap
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

# Lengths are in inches, sizes of text in points.
_SMALLEST_WIDTH, _LARGEST_WIDTH = 8.2, 10.2  # on a page, text of a wider figure is too small
_MOST_COLUMNS = 3
_LEGEND_ROW, _NOTE_LINE, _GAP = 0.23, 0.19, 0.08
_NOTE_CHARACTERS = 14.5  # per inch
_EQUALS = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
# A note is the user's text: a dollar sign in it starts no formula.
_NOTE_OPTIONS: dict[str, Any] = {
    "ha": "center", "va": "bottom", "fontsize": 8.5, "color": "#444444", "parse_math": False,
}  # fmt: skip
_LEGEND_SIZE = 9.5
_LABEL_ROOM = 0.15  # of an axis' length
_HEADING, _HEADING_SIZE = 0.3, 10.5
# Spaces in the legend, in units of its font size.
_HANDLE, _HANDLE_GAP, _COLUMN_GAP = 2.0, 0.6, 1.2


# An artist with a label, keyword arguments of `plot` with one, or a heading.
Entry = Artist | dict[str, Any] | str


def make_frame(
    *,
    titles: Sequence[str],
    panel_size: tuple[float, float],
    legend: Sequence[Sequence[Entry]],
    notes: Sequence[str],
    caption: Sequence[str] = (),
    columns: int | None = None,
    headings: Sequence[str] = ("",),
    labels: tuple[str, str] = ("", ""),
    sharey: bool = False,
) -> tuple[Figure, list[list[Axes]]]:
    """Lays out panels, legend and notes so that they do not overlap.

    Args:
        titles: of the panels of one block.
        panel_size: (width, height) of one panel in inches; panels become narrower where many
            stand side by side.
        legend: its groups, each of which starts a row.
        notes: what a reader must know; each starts a line and is wrapped to the figure's width.
        caption: sentences on what the figure shows, which stand beside it and not in it: they are
            the figure's label, and `storage.write_figure` keeps them.
        columns: panels side by side; by default up to three.
        headings: one for each block of panels. Blocks stand one above the other, or side by side
            if each is a single panel.
        labels: of all x axes and of all y axes.
        sharey: whether the panels of a block share their y axis.

    Returns:
        The figure, and each block's panels, row by row.
    """
    num_panels = len(titles)
    columns = columns or ceil(num_panels / ceil(num_panels / _MOST_COLUMNS))
    rows = ceil(num_panels / columns)
    down, across = (1, len(headings)) if num_panels == 1 else (len(headings), 1)
    content_width = across * columns * panel_size[0] + 0.6
    width = min(max(_SMALLEST_WIDTH, content_width), _LARGEST_WIDTH)
    artists = [
        [Line2D([], [], **e) if isinstance(e, dict) else e for e in entries] for entries in legend
    ]
    legend_rows = [row for group in artists for row in _packed(group, width - 0.1)]
    lines = [line for note in notes for line in _wrapped(note, int(width * _NOTE_CHARACTERS))]
    footer = len(legend_rows) * _LEGEND_ROW + len(lines) * _NOTE_LINE + 2.5 * _GAP
    body_height = 0.5 + down * (rows * panel_size[1] + _HEADING * any(headings))
    figure = Figure(figsize=(width, body_height + footer), layout="constrained")
    figure.set_label(" ".join(filter(None, caption)))
    body, below = figure.subfigures(2, 1, height_ratios=[body_height, footer], squeeze=False).flat
    _fill_footer(below, legend_rows, lines, height=footer)
    parts = [body]
    if len(headings) > 1:
        parts = [*body.subfigures(down, across, squeeze=False).flat]
    blocks: list[list[Axes]] = []
    for part, heading in zip(parts, headings, strict=True):
        if heading:
            part.suptitle(heading, fontsize=_HEADING_SIZE, fontweight="bold")
        panels = [*part.subplots(rows, columns, squeeze=False, sharey=sharey).flat]
        for unused in panels[num_panels:]:
            unused.set_visible(False)
        for axes, title in zip(panels, titles, strict=False):
            axes.set_title(title)
            if sharey:
                axes.tick_params(labelleft=True)
        blocks.append(panels[:num_panels])
    if any(labels):
        body.supxlabel(labels[0], fontsize=10)
        body.supylabel(labels[1], fontsize=10)
    return figure, blocks


def _packed(entries: Sequence[Artist | str], width: float) -> list[list[Artist | str]]:
    """Entries of the legend in rows that are no wider than `width` inches."""
    rows: list[list[Artist | str]] = []
    used = width
    for entry in entries:
        spacing = (_HANDLE + _HANDLE_GAP + _COLUMN_GAP) * _LEGEND_SIZE
        needed = (_text_width(_label(entry)) + spacing) / 72
        if used + needed > width:
            rows.append([])
            used = 0.0
        rows[-1].append(entry)
        used += needed
    return rows


def _text_width(label: str) -> float:
    """The width of a label of the legend in points."""
    font = FontProperties(family="DejaVu Sans", size=_LEGEND_SIZE)
    width, _, _ = text_to_path.get_text_width_height_descent(label, font, is_math_text(label))
    return float(width)


def _label(entry: Artist | str) -> str:
    return entry if isinstance(entry, str) else str(entry.get_label())


def _wrapped(text: str, width: int) -> list[str]:
    """As few lines as `width` characters allow, of about equal length; no line for no text."""
    text = text.replace(" = ", _EQUALS)  # textwrap does not break it
    fewest = len(textwrap.wrap(text, width))
    if not fewest:
        return []
    return next(
        [line.replace(_EQUALS, " = ") for line in lines]
        for shorter in range(len(text) // fewest, width + 1)
        if len(lines := textwrap.wrap(text, shorter)) == fewest
    )


def _fill_footer(
    footer: SubFigure,
    rows: Sequence[Sequence[Artist | str]],
    lines: Sequence[str],
    *,
    height: float,
) -> None:
    no_line = Line2D([], [], linestyle="none")
    for index, row in enumerate(rows):
        legend = footer.legend(
            handles=[no_line if isinstance(entry, str) else entry for entry in row],
            labels=[_label(entry) for entry in row],
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
            text.set_fontstyle("italic" if isinstance(entry, str) else "normal")
    bottom = (_GAP + (len(lines) - 1) * _NOTE_LINE) / height
    for index, line in enumerate(lines):
        y = bottom - index * _NOTE_LINE / height
        footer.text(0.5, y, line, **_NOTE_OPTIONS)


def log_ticks(axes: Axes, *, axis: str) -> None:
    """Labels a logarithmic axis with plain numbers at 1, 2 and 5 times powers of ten."""
    chosen = axes.xaxis if axis == "x" else axes.yaxis
    chosen.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    chosen.set_minor_locator(LogLocator(subs=range(1, 10), numticks=20))
    chosen.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    chosen.set_minor_formatter(NullFormatter())


def value_ticks(axes: Axes, values: Iterable[float]) -> None:
    """Makes the x axis logarithmic, with a tick at each value and labels where there is room."""
    ticks = {*map(float, values)}
    low, high = min(ticks), max(ticks)
    margin = max((high / low) ** 0.05, 1.15)
    labelled = _labelled(ticks, needed=(high / low) ** _LABEL_ROOM)
    axes.set_xscale("log")
    axes.set_xlim(low / margin, high * margin)
    axes.xaxis.set_major_locator(FixedLocator(sorted(labelled)))
    axes.xaxis.set_minor_locator(FixedLocator(sorted(ticks - labelled)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _shown(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _shown(value: float) -> str:
    """A count with all digits; other numbers, such as calibrated noise, with three."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"


def _labelled(ticks: set[float], *, needed: float) -> set[float]:
    """Values to label, at least a factor `needed` apart: the ends, round numbers, then others."""
    ends = {min(ticks), max(ticks)}
    rounds = {"1": 0, "5": 1, "2": 2}
    chosen = set(ends)
    for place in sorted(ticks - ends, key=lambda value: (rounds.get(_digits(value), 3), value)):
        if all(max(place / other, other / place) >= needed for other in chosen):
            chosen.add(place)
    return chosen


def _digits(value: float) -> str:
    """A number's significant digits; a round number has one."""
    return f"{value:.9e}".split("e")[0].replace(".", "").rstrip("0")


def draw_line(axes: Axes, curve: pd.DataFrame, axis: str, options: dict[str, Any]) -> None:
    """Draws audited epsilons with their error bars; a bar of NaN is not drawn."""
    options = {"elinewidth": 1.0, "capsize": 2.5, **options}
    axes.errorbar(curve[axis], curve["epsilon"], yerr=curve["error_bar"], **options)


def draw_band(
    axes: Axes, positions: Any, low: Any, high: Any, colour: str, *, opacity: float = 0.18
) -> None:
    """Fills the region between two curves."""
    axes.fill_between(positions, low, high, color=colour, alpha=opacity, linewidth=0)
