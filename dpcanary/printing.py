"""What commands print: tables for people, JSON for programs."""

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import ceil, floor
from string import ascii_lowercase
from typing import Any

_WIDTH = 88


def print_json(values: Mapping[str, Any]) -> None:
    """Prints JSON. Numbers that are not finite become null."""
    print(json.dumps(_plain(values), indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns. The last one is wrapped; the others are as wide as their texts."""
    print("\n".join(table_lines(header, rows)))


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of such a table."""
    printed = []
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)][:-1]
    start = sum(widths) + 3 * len(widths)
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines = textwrap.wrap(row[-1], max(24, _WIDTH - start)) or [""]
        printed.append("   ".join([*cells, lines[0]]).rstrip())
        printed += [" " * start + line for line in lines[1:]]
    return printed


def lettered(conditions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Gives each part of some conditions a letter. Parts are divided by `; `.

    Returns:
        For each condition its letters, and a line for each letter that says what it stands for.

    Example:
        >>> lettered(["one; two", "two"])
        (['a, b', 'b'], ['a: one', 'b: two'])
    """
    parts = [condition.split("; ") for condition in conditions]
    letters = dict(zip(dict.fromkeys(chain(*parts)), ascii_lowercase, strict=False))
    of_each = [", ".join(letters[part] for part in condition) for condition in parts]
    return of_each, [f"{letter}: {part}" for part, letter in letters.items()]


def print_text(text: str) -> None:
    """Prints a paragraph, wrapped."""
    print(wrapped(text))


def wrapped(text: str) -> str:
    """A paragraph with line breaks."""
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def confidence_in_words(significance: float) -> str:
    """The confidence that a significance leaves.

    Example:
        >>> confidence_in_words(0.05), confidence_in_words(0.001)
        ('95 %', '99.9 %')
    """
    return f"{100 * (1 - significance):.6g} %"


def number(value: float) -> str:
    """A number for a table, with two digits after the point."""
    return _with_two_digits(value, round)


def rounded_up(value: float) -> str:
    """An upper bound for a table: a smaller number would be no bound.

    Example:
        >>> rounded_up(9.99001), rounded_up(1.1)
        ('10.00', '1.10')
    """
    return _with_two_digits(value, ceil)


def rounded_down(value: float) -> str:
    """A lower bound for a table: a larger number would be no bound.

    Example:
        >>> rounded_down(9.98999), rounded_down(0.29)
        ('9.98', '0.29')
    """
    return _with_two_digits(value, floor)


def _with_two_digits(value: float, whole: Callable[[float], int]) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    # A bound that is a number of two digits, but for the rounding of floats, is that number.
    return f"{whole(round(100 * value, 6)) / 100:,.2f}"
