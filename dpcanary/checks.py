"""Checks of single arguments that the library's public functions share."""

from math import inf, isfinite
from numbers import Integral, Real

from dpcanary.errors import InputError


def checked_real(
    name: str,
    value: float,
    *,
    most: float = inf,
    most_included: bool = False,
    zero_included: bool = False,
) -> float:
    """A finite number above 0 and below `most`, as a float.

    Args:
        name: for the error.
        value: to be checked.
        most: the upper limit.
        most_included: whether the upper limit itself is allowed.
        zero_included: whether 0 is allowed.

    Raises:
        InputError: if it is something else.
    """
    number = _as_float(value)
    above = number >= 0 if zero_included else number > 0
    below = number <= most if most_included else number < most
    if above and below:
        return number
    least = "of at least 0" if zero_included else "above 0"
    limit = f" and {'at most' if most_included else 'below'} {most:g}" if isfinite(most) else ""
    raise InputError(f"{name} is {value!r}; it must be a finite number {least}{limit}")


def checked_count(name: str, value: int, *, least: int = 1) -> int:
    """A whole number from `least` on, as an int.

    Raises:
        InputError: if it is something else.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and value >= least:
        return int(value)
    raise InputError(f"{name} is {value!r}; it must be a whole number of at least {least}")


def _as_float(value: object) -> float:
    """The number as a float, or NaN (which no check admits) for anything else."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return float("nan")
    try:
        number = float(value)
    except OverflowError:
        return float("nan")
    return number if isfinite(number) else float("nan")
