"""The check of a significance that estimates share."""

from dpcanary.checks import checked_real
from dpcanary.errors import InputError

# The simultaneous level can be computed down to half of this.
_LEAST_SIGNIFICANCE = 2e-9
# A bound that fails more often than it holds is no bound.
_LARGEST_SIGNIFICANCE = 0.5


def checked_significance(significance: float) -> float:
    """The significance, as a float.

    Raises:
        InputError: if it is not a number in [2e-9, 0.5].
    """
    value = checked_real(
        "significance", significance, most=_LARGEST_SIGNIFICANCE, most_included=True
    )
    if value < _LEAST_SIGNIFICANCE:
        raise InputError(f"significance is {value}; it must be at least {_LEAST_SIGNIFICANCE:g}")
    return value
