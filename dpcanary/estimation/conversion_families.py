"""The family of trade-off curves of each conversion."""

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.families import GDP, Family, direct_family


def family_of(
    conversion: Conversion, *, delta: float, mechanism: Mechanism | None = None
) -> Family:
    """The curves among which a conversion looks for the mechanism's.

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
    return GDP if conversion is Conversion.GDP else direct_family(delta)
