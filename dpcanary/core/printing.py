"""What commands print: tables for people, JSON for programs."""

import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, Context
from itertools import chain, zip_longest
from math import ceil, floor
from string import ascii_lowercase
from typing import Any

WIDTH = 80  # characters: terminals have at least so many


def print_answer(values: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Prints what a command answers: the values for a program, or a text for a person."""
    if as_json:
        print_json(values)
    else:
        print(text)


def print_unless_closed(text: str) -> None:
    """Prints to a reader that may have ended, such as `head`; then nobody needs the rest."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # and nothing is flushed into the pipe at the end of the process
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(values: Mapping[str, Any]) -> None:
    """Prints JSON. Numbers that are not finite become null."""
    print(json.dumps(_plain(values), indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns, which are wrapped where they do not fit side by side."""
    print("\n".join(table_lines(header, rows)))


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, named: bool = False
) -> list[str]:
    r"""Format a table as lines of text; see `print_table`.

    Args:
        header: the names of the columns.
        rows: a cell for each column.
        named: whether the first column holds names, which people copy: those of up to half of the
            width are not divided.

    Example:
        >>> print(*table_lines(("a", "b"), [("x", "y" * 60 + " " + "z" * 20)]), sep="\n")
        a   b
        x   yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy
            zzzzzzzzzzzzzzzzzzzz
    """
    columns = [*zip(header, *rows, strict=True)]
    # Cells are wrapped where narrow gaps are not enough, and words divided where nothing else is.
    layouts = [(3, None), (2, None), (3, WIDTH), (2, WIDTH), (2, 16), (2, 12), (1, 8)]
    if named:  # rather a narrow gap than a name in pieces
        layouts.insert(4, (1, WIDTH))
    for gap, longest in layouts:
        most = WIDTH - gap * (len(columns) - 1)
        widths = _widths(columns, most, longest=longest, named=named)
        if sum(widths) <= most:
            break
    lines = []
    for row in (header, *rows):
        cells = [_cell_lines(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [part.ljust(width) for part, width in zip(parts, widths, strict=True)]
            lines.append((" " * gap).join(padded).rstrip())
    return lines


class _CellWrapper(textwrap.TextWrapper):
    """Names with underscores or hyphens may be divided after these; numbers such as 1e-05 not."""

    wordsep_re = re.compile(r"(\s+|\S*?[A-Za-z]{2}[\w.]*?[_-](?=\w))")


def _cell_lines(cell: str, width: int, *, divides: bool = True) -> list[str]:
    """The lines of a cell; an indented cell stays so."""
    indent = cell[: len(cell) - len(cell.lstrip())]
    wrapper = _CellWrapper(width, subsequent_indent=indent, break_long_words=divides)
    return wrapper.wrap(cell) or [""]


def _widths(
    columns: Sequence[Sequence[str]], most: int, *, longest: int | None, named: bool
) -> list[int]:
    """The widths of columns: the widest shrink, to their longest words or to `longest`.

    With None, none shrinks. Names in the first column count as words.
    """
    widths = [max(map(len, column)) for column in columns]
    if longest is None:
        return widths
    words = [[len(word) for cell in column for word in _cell_lines(cell, 1, divides=False)]
             for column in columns]  # fmt: skip
    least = [min(longest, max(lengths)) for lengths in words]
    if named and widths[0] <= WIDTH // 2:
        least[0] = widths[0]
    while sum(widths) > most:
        shrinkable = [(width, i) for i, width in enumerate(widths) if width > least[i]]
        if not shrinkable:
            break
        widths[max(shrinkable)[1]] -= 1
    return widths


def lettered(conditions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Gives each part of some conditions a letter. Parts are divided by `; `.

    Returns:
        For each condition its letters, and a line for each letter that says what it stands for.

    Example:
        >>> lettered(["one; two", "two"])
        (['a,b', 'b'], ['a: one', 'b: two'])
    """
    parts = [condition.split("; ") for condition in conditions]
    letters = dict(zip(dict.fromkeys(chain(*parts)), ascii_lowercase, strict=False))
    of_each = [",".join(letters[part] for part in condition) for condition in parts]
    return of_each, [f"{letter}: {part}" for part, letter in letters.items()]


def bounds_in_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], conditions: Sequence[str]
) -> str:
    """A table of bounds, and below it the conditions under which each of them holds."""
    letters, meanings = lettered(conditions)
    lettered_rows = [(*row, own) for row, own in zip(rows, letters, strict=True)]
    table = table_lines((*header, "if"), lettered_rows)
    return "\n".join([*table, "", *map(wrapped, meanings)])


def wrapped(text: str, *, start: str = "") -> str:
    """A paragraph with line breaks, after `start`, as far as which all lines are indented."""
    return textwrap.fill(
        text.replace(" %", "\N{NO-BREAK SPACE}%"),
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    ).replace("\N{NO-BREAK SPACE}%", " %")


def confidence_in_words(significance: float) -> str:
    """The confidence that a significance leaves, rounded down.

    Example:
        >>> confidence_in_words(0.05), confidence_in_words(0.05 / 6)
        ('95 %', '99.1666 %')
    """
    digits = max(4, 1 - floor(math.log10(100 * significance)))
    rest = ceil(round(100 * significance * 10**digits, 6)) / 10**digits
    return f"{100 - rest:.10g} %"


def number(value: float) -> str:
    """A number for a table, with two digits after the point."""
    return _with_digits(value, round, 2)


def rounded_up(value: float, *, digits: int = 2) -> str:
    """An upper bound for a table: a smaller number would be no bound.

    Example:
        >>> rounded_up(9.99001), rounded_up(1.1)
        ('10.00', '1.10')
    """
    return _with_digits(value, ceil, digits)


def rounded_down(value: float, *, digits: int = 2) -> str:
    """A lower bound for a table: a larger number would be no bound.

    Example:
        >>> rounded_down(9.98999), rounded_down(0.29)
        ('9.98', '0.29')
    """
    return _with_digits(value, floor, digits)


def percent(share: float) -> str:
    """A share in per cent, with at most three digits.

    Example:
        >>> percent(0.1), percent(0.001), percent(1e-4)
        ('10 %', '0.1 %', '0.01 %')
    """
    return f"{100 * share:.3g} %"


def percent_up(share: float) -> str:
    """An upper bound on a share in per cent, with at least three digits, rounded up.

    Example:
        >>> percent_up(0.39231), percent_up(0.0034323), percent_up(0.99951), percent_up(1.0)
        ('39.3 %', '0.344 %', '99.96 %', '100 %')
        >>> percent_up(0.9999999)
        '100 %'
    """
    return _percent(share, ceil)


def percent_down(share: float) -> str:
    """A lower bound on a share in per cent, with at least three digits, rounded down.

    Example:
        >>> percent_down(0.39291), percent_down(0.0)
        ('39.2 %', '0 %')
    """
    return _percent(share, floor)


def p_value_up(p_value: float) -> str:
    """A p-value with two digits, rounded up: a smaller number would not be valid.

    Example:
        >>> p_value_up(0.0504), p_value_up(0.0007), p_value_up(1.0)
        ('0.051', '0.0007', '1')
    """
    two_digits = Context(prec=2, rounding=ROUND_CEILING)
    return f"{float(two_digits.create_decimal(repr(float(p_value)))):.2g}"


def _percent(share: float, whole: Callable[[float], int]) -> str:
    """Three digits; four where the share is so near to 1 that three would say little."""
    if share <= 0:
        return "0 %"
    digits = max(0, 2 - floor(math.log10(min(100 * share, 99.0))), 2 if share > 0.995 else 0)
    scale = 10**digits
    return f"{whole(round(100 * share * scale, 6)) / scale:.10g} %"


def _with_digits(value: float, whole: Callable[[float], int], digits: int) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    # A bound that is a number of so many digits, but for the rounding of floats, is that number.
    factor = 10**digits
    return f"{whole(round(factor * value, 6)) / factor:,.{digits}f}"
