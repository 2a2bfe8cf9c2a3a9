"""Checks of single arguments that the library's public functions share."""

from math import isfinite
from numbers import Integral, Real

from dpcanary.errors import InputError


def checked_real(
    name: str, value: float, *, most: float = float("inf"), most_included: bool = False
) -> float:
    """A finite number above 0 and up to `most`, as a float.

    Raises:
        InputError: it is something else.
    """
    number = _as_float(value)
    if 0 < number < most or (most_included and number == most):
        return number
    limit = f" and {'at most' if most_included else 'below'} {most:g}" if isfinite(most) else ""
    raise InputError(f"{name} is {value!r}; it must be a finite number above 0{limit}")


def checked_count(name: str, value: int) -> int:
    """A whole number from 1 on, as an int.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and value >= 1:
        return int(value)
    raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1")


def _as_float(value: object) -> float:
    """The number as a float, or 0 (which no check admits) for anything else."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return 0.0
    try:
        number = float(value)
    except OverflowError:
        return 0.0
    return number if isfinite(number) else 0.0
