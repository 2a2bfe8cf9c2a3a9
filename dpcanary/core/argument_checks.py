"""Checks of single arguments that public functions share, and fixed sets of names."""

import re
from enum import StrEnum
from math import inf, isfinite, nan
from numbers import Integral, Real
from typing import NoReturn

from dpcanary.errors import InputError, suggestion

# A name that becomes a part of a file's name.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class Choice(StrEnum):
    """A fixed set of names. A function takes a member or its name; anything else is an error."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        kind = re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
        raise InputError(f"unknown {kind} {value!r}: {suggestion(str(value), cls)}")


def checked_real(
    name: str,
    value: float,
    *,
    most: float = inf,
    most_included: bool = False,
    zero_included: bool = False,
) -> float:
    """A finite number above 0 and below `most`, as a float; both limits may be included.

    Raises:
        InputError: if it is something else.
    """
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else nan
    except OverflowError:
        number = nan
    above = number >= 0 if zero_included else number > 0
    below = number <= most if most_included else number < most
    if isfinite(number) and above and below:
        return number
    least = "of at least 0" if zero_included else "above 0"
    limit = f" and {'at most' if most_included else 'below'} {most:g}" if isfinite(most) else ""
    raise InputError(f"{name} is {value!r}; it must be a finite number {least}{limit}")


def checked_name(what: str, value: str) -> str:
    """A name that may be a part of a file's name.

    Raises:
        InputError: if it is something else.
    """
    if re.fullmatch(NAME_PATTERN, value):
        return value
    raise InputError(f"{what} {value!r} is not a name; use letters, digits and . _ -")


def checked_count(name: str, value: int, *, least: int = 1) -> int:
    """A whole number of at least `least`, as an int.

    Raises:
        InputError: if it is something else.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and value >= least:
        return int(value)
    raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}")


def large_delta(delta: float, num_records: int) -> str:
    """Why a delta is too large for a dataset, in a sentence; empty if it is not.

    Example:
        >>> large_delta(1e-5, 60_000)
        ''
    """
    if delta * num_records < 1:
        return ""
    return (
        f"delta {delta:g} is at least 1 / {num_records:,} records: a mechanism that publishes each"
        " record with this probability, and so whole records, satisfies it with epsilon 0. Its"
        f" epsilons promise next to nothing; choose a delta well below {1 / num_records:.2g}"
    )
