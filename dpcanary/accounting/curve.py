"""Trade-off curves, and those of Gaussian mechanisms: all without an accountant."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.gdp import gdp_delta, gdp_epsilon
from dpcanary.errors import InputError

Array = NDArray[np.float64]


class TradeOffCurve(ABC):
    """The least FNR of all tests, by their FPR: convex, and falling from 1 to 0.

    World 1 is the null hypothesis. A false positive is a run of world 1 that is classified as
    world 0, and a false negative is a run of world 0 that is classified as world 1. Under
    `add_remove` and `zero_out`, world 0 is the one that trains on the record.
    """

    def fnr(self, fpr: ArrayLike) -> Array:
        """Least FNR of any test with each of these FPRs in [0, 1], in the same shape.

        It is never above the mechanism's exact one.

        Raises:
            InputError: if a rate is not in [0, 1], such as NaN.
        """
        rates = np.asarray(fpr, dtype=np.float64)
        inside = (rates >= 0) & (rates <= 1)
        if not inside.all():
            raise InputError(f"fpr has the value {rates[~inside][0]}; rates are in [0, 1]")
        return self._fnr(rates)

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Upper epsilon of the same losses at a delta between 0 and 1, both excluded.

        Raises:
            InputError: delta is out of its range.
            AccountingError: delta is too small, or epsilon too large, for the accountant.
        """

    @abstractmethod
    def _fnr(self, fpr: Array) -> Array: ...


class ExactCurve(TradeOffCurve):
    """A curve that is known exactly, and with it the whole privacy profile."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Delta at an epsilon of at least 0, for the worse of both orders of the worlds."""


@dataclass(frozen=True)
class GaussianCurve(ExactCurve):
    """G_mu, the curve of N(mu, 1) in world 0 against N(0, 1) in world 1.

    Attributes:
        mu: the Gaussian privacy parameter, at least 0 and finite.
    """

    mu: float

    def epsilon(self, delta: float) -> float:
        """See TradeOffCurve."""
        return gdp_epsilon(mu=self.mu, delta=delta)

    def delta(self, epsilon: float) -> float:
        """See ExactCurve."""
        return gdp_delta(mu=self.mu, epsilon=epsilon)

    def _fnr(self, fpr: Array) -> Array:
        return np.asarray(ndtr(-ndtri(fpr) - self.mu))


def curve_of_full_batches(mechanism: Mechanism) -> GaussianCurve:
    """The exact curve without sampling; the mechanism's noise must be given."""
    return GaussianCurve(mechanism.adjacency.sensitivity / mechanism.collapsed().noise_multiplier)
