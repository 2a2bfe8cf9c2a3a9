"""What a check cannot see, so that nobody takes more from it than it measures."""

from dataclasses import dataclass
from math import log1p, sqrt

import numpy as np
from scipy.stats import chi2, norm

from dpcanary.mechanism_check.measurements import Plan
from dpcanary.mechanism_check.noise import EDGES
from dpcanary.mechanism_check.probes import NORMS, NUM_TENSORS, PARAMETERS_OF_RECORD, SMALL


@dataclass(frozen=True)
class SmallestErrors:
    """Errors that are found with a probability of about 1/2; smaller ones mostly pass.

    Attributes:
        noise: relative, of the noise's scale in the smallest parameter tensor.
        rate: relative, of the sample rate.
        differing_rates: standard deviation between the records' own rates, over the sample rate.
        cut_off: largest standard deviation from which on missing noise is found.
    """

    noise: float
    rate: float
    differing_rates: float
    cut_off: float


def smallest_errors(plan: Plan, level: float) -> SmallestErrors:
    """The errors that a check can just see, by normal approximation.

    Args:
        plan: what is measured.
        level: of each random property.
    """
    rate, count, num_trainings = plan.settings.sample_rate, plan.num_records, plan.num_trainings
    values = num_trainings * count  # of the smallest tensor
    largest = chi2(values).isf(level / (2 * (1 + NUM_TENSORS)))
    far = norm.isf(level / (2 * 3))  # the sampling rate has three tests
    # No value beyond an edge must be too unlikely.
    needed = level / (2 * (1 + NUM_TENSORS) * (len(EDGES) - 1))
    num_values = num_trainings * count * PARAMETERS_OF_RECORD
    seen = [edge for edge in EDGES[1:-1] if num_values * log1p(-norm.sf(edge)) < np.log(needed)]
    return SmallestErrors(
        noise=sqrt(largest / values) - 1,
        rate=far * sqrt((1 - rate) / (rate * values)),
        differing_rates=sqrt(far * sqrt(2 / count) * (1 - rate) / (rate * num_trainings)),
        cut_off=max(seen, default=0.0),
    )


def blind_spots(plan: Plan, level: float) -> tuple[str, ...]:
    """Errors that pass, in words.

    Args:
        plan: what is measured.
        level: of each random property.
    """
    norms = ", ".join(f"{one:g}" for one in (SMALL, *NORMS[:-1]))
    small = smallest_errors(plan, level)
    return (
        "errors of your own model and data: layers other than linear ones and embeddings, shared"
        " parameters, records that occur twice",
        "errors that need more than two steps, a schedule, accumulated gradients, or another"
        " setting, device or precision",
        f"clipping of gradients whose norms are not {norms} or {NORMS[-1]:g} times C",
        "batches or noise that depend on what records say: all labels are the same, noise is"
        " measured where gradients are 0, and the rest almost without noise",
        "random numbers that can be predicted, and noise that is shared in a way that shows neither"
        " in sums nor between equal places of two parameters",
        f"errors of less than {small.noise:.1%} in the noise of one parameter and {small.rate:.1%}"
        f" in the sample rate, rates that differ between records by less than"
        f" {small.differing_rates:.0%}, noise that is cut off beyond {small.cut_off:g} deviations",
    )
