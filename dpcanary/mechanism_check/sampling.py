"""How records are drawn: measured values, and how unlikely they are if sampling is Poisson."""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dpcanary.mechanism_check.laws import Array, binomial_p_values, spread_p_value
from dpcanary.mechanism_check.measurements import STABLE, Measured, Measurements, Tested

# Of parts, over those of records that are in the batch of one step.
_PRESENT = 0.01
# Relative: in a second step, gradients are smaller by up to a twentieth.
_CLOSE = 0.1


def sampling_rate(found: Measurements) -> Measured:
    """The share of records in a batch, and in how many batches each record is."""
    drawn, rate = found.drawn, found.sample_rate
    num_trainings, num_records = drawn.shape
    counts = drawn.sum(axis=0)
    of_records = binomial_p_values(counts, num_trainings, rate)
    record = int(np.argmin(of_records))
    expected, deviation = num_trainings * rate, sqrt(num_trainings * rate * (1 - rate))
    spread = (
        f"each record in {counts.mean():.1f} ± {counts.std():.1f} batches"
        f" of {expected:.1f} ± {deviation:.1f}"
    )
    return Measured(
        f"{drawn.mean():.4f} of {rate:g}",
        (
            Tested("", float(binomial_p_values(drawn.sum(), drawn.size, rate))),
            Tested(
                f"record {record} in {counts[record]} of {num_trainings} batches",
                min(1.0, num_records * of_records[record]),
            ),
            Tested(spread, spread_p_value(counts, num_trainings, rate)),
        ),
    )


def batch_sizes(found: Measurements) -> Measured:
    """The spread of the sizes of batches, among that of binomial numbers."""
    sizes, (_, count) = found.drawn.sum(axis=1), found.drawn.shape
    deviation = sqrt(count * found.sample_rate * (1 - found.sample_rate))
    return Measured(
        f"standard deviation {sizes.std():.2f} of {deviation:.2f}",
        (Tested("", spread_p_value(sizes, count, found.sample_rate)),),
    )


def both_steps(found: Measurements) -> Measured:
    """The share of records that are in both batches of two steps."""
    steady = found.norms <= STABLE
    one, two = (
        np.mean([*parts.values()], axis=0)[:, steady] for parts in (found.parts, found.parts_of_two)
    )
    usual = _usual_parts(one, found.drawn[:, steady], found.norms[steady])
    both = np.array([_in_both(own / usual) for own in two])
    expected = found.sample_rate**2
    p_value = float(binomial_p_values(both.sum(), both.size, expected))
    return Measured(f"{both.mean():.5f} of {expected:.5f}", (Tested("", p_value),))


def _in_both(parts: Array) -> NDArray[np.bool_]:
    """Which records were in both batches of one training.

    Parts are 0, a, b, or a + b for records in both. If all is right, a and b are 1; but they must
    not be taken for a + b if they differ, as they do in divisions by the batch that was drawn.

    Args:
        parts: after two steps, over the usual ones of one step; shape (records,).
    """
    present = parts[parts > _PRESENT]
    if not present.size:
        return np.zeros(parts.shape, dtype=bool)
    least, most = float(present.min()), float(present.max())
    other = most - least
    if other < _CLOSE * most:  # all records were in both, or none
        return parts > 1.5
    has_sum = np.abs(present - other).min() < _CLOSE * other
    return parts > (most - least / 2 if has_sum else most)


def _usual_parts(parts: Array, drawn: NDArray[np.bool_], norms: Array) -> Array:
    """The median part in one step of records with the same norm of gradients, shape (records,)."""
    usual = np.minimum(1.0, norms)  # if none of them was in a batch
    for norm in np.unique(norms):
        present = parts[:, norms == norm][drawn[:, norms == norm]]
        if present.size:
            usual[norms == norm] = np.median(present)
    return usual
