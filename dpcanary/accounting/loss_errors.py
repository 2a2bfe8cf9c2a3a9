"""Error rates of the likelihood-ratio tests on a discretised privacy loss."""

from dataclasses import dataclass

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Errors:
    """Error rates of tests between two distributions, the second of which is the null hypothesis.

    Attributes:
        false_positives: the null's mass at which the null is rejected, shape (tests,), not falling.
        false_negatives: the other's mass at which it is not, shape (tests,), not rising.
    """

    false_positives: Array
    false_negatives: Array


def errors_by_threshold(masses: PLDPmf) -> Errors:
    """Errors of the tests that reject the null at a loss of at least t, for falling t down to 0.

    The first test rejects at an infinite loss only. The last entry is no test: it continues the
    curve with the slope -1, which it has at the threshold 0.

    Args:
        masses: a distribution's masses by its loss against the null hypothesis.
    """
    # dp-accounting has no public access to the masses.
    dense = masses.to_dense_pmf()
    lowest, interval = dense._lower_loss, dense._discretization
    kept = dense._probs[max(0, -lowest) :][::-1]
    losses = interval * (max(0, lowest) + np.arange(len(kept))[::-1])
    # In long double, so that long sums add nothing to the round-off of the composition.
    null = _running_sum(kept * np.exp(-losses))
    power = dense._infinity_mass + _running_sum(kept)
    return Errors(
        np.append(null, null[-1] + 1).astype(np.float64),
        np.append(1 - power, -power[-1]).astype(np.float64),
    )


def _running_sum(masses: Array) -> NDArray[np.longdouble]:
    """Sums of the first 0, 1, ... masses; the transforms leave some masses just below 0."""
    sums = np.cumsum(masses, dtype=np.longdouble)
    return np.maximum.accumulate(np.concatenate([np.zeros(1, np.longdouble), sums]))
