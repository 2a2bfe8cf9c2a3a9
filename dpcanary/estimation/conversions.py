"""Which family of trade-off curves each conversion assumes."""

from functools import lru_cache

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.errors import InputError
from dpcanary.estimation.families import GDP, Family, direct_family
from dpcanary.estimation.options import Conversion


def family_of(
    conversion: Conversion, *, delta: float, mechanism: Mechanism | None = None
) -> Family:
    """The curves among which a conversion looks for the mechanism's.

    Args:
        conversion: see `Conversion`.
        delta: of (epsilon, delta)-DP.
        mechanism: for `subsampled_gaussian`; its noise is not used.

    Raises:
        InputError: if `subsampled_gaussian` has no mechanism, or another conversion has one.
    """
    if conversion is Conversion.SUBSAMPLED_GAUSSIAN:
        if not isinstance(mechanism, Mechanism):
            raise InputError(
                "conversion 'subsampled_gaussian' needs a Mechanism: its adjacency, sample_rate and"
                " num_steps tell the family of curves"
            )
        # Imported when it is asked for, as accounting takes a while to import.
        from dpcanary.estimation.subsampled_family import subsampled_family

        return subsampled_family(mechanism)
    if mechanism is not None:
        raise InputError(
            f"a mechanism goes with 'subsampled_gaussian', not with {str(conversion)!r}"
        )
    return GDP if conversion is Conversion.GDP else _direct_family(delta)


_direct_family = lru_cache(maxsize=16)(direct_family)
