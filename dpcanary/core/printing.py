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


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = _WIDTH
) -> list[str]:
    """The lines of such a table."""
    printed = []
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)][:-1]
    start = sum(widths) + 3 * len(widths)
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines = textwrap.wrap(row[-1], max(24, width - start)) or [""]
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


def print_bounds(
    header: Sequence[str], rows: Sequence[Sequence[str]], conditions: Sequence[str]
) -> None:
    """Prints a table of bounds, and below it the condition under which each of them holds."""
    letters, meanings = lettered(conditions)
    lettered_rows = [(*row, own) for row, own in zip(rows, letters, strict=True)]
    print_table((*header, "if these hold"), lettered_rows)
    print()
    for meaning in meanings:
        print_text(meaning)
    print()


def each_alone(num_bounds: int) -> str:
    """What must be said of several bounds, none of which was chosen beforehand."""
    return " Each bound holds alone: choose one before you see them." if num_bounds > 1 else ""


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


def _percent(share: float, whole: Callable[[float], int]) -> str:
    """Three digits; four where the share is so near to 1 that three would say little."""
    if share <= 0:
        return "0 %"
    digits = max(0, 2 - floor(math.log10(min(100 * share, 99.0))), 2 if share > 0.995 else 0)
    scale = 10**digits
    return f"{whole(round(100 * share * scale, 6)) / scale:.10g} %"


def _with_two_digits(value: float, whole: Callable[[float], int]) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    # A bound that is a number of two digits, but for the rounding of floats, is that number.
    return f"{whole(round(100 * value, 6)) / 100:,.2f}"
