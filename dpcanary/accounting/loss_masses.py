"""dp-accounting's masses of privacy losses, with arithmetic on arrays in place of its loops."""

from functools import cached_property
from math import ceil, expm1, floor, inf, isfinite, log, log1p

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from numpy.typing import NDArray
from scipy.fft import fft, ifft, next_fast_len

# The orders of Chernoff's bound, over the number of masses: those of dp-accounting.
_MOST_ORDER = 20


class LossMasses(DensePLDPmf):  # type: ignore[misc]
    """Masses of privacy losses on a grid.

    Three methods do faster what their parents do, for one epsilon and a truncation above 0.
    `compose` is that of the parent, which composes masses of one class only.
    """

    @classmethod
    def of(cls, masses: DensePLDPmf) -> "LossMasses":
        """The masses of a PMF; dp-accounting has no public access to them."""
        return cls(
            masses._discretization,
            masses._lower_loss,
            np.asarray(masses._probs),
            masses._infinity_mass,
            masses._pessimistic_estimate,
        )

    def compose(self, other: DensePLDPmf, tail_mass_truncation: float = 0) -> "LossMasses":
        """The loss of both."""
        return LossMasses.of(super().compose(other, tail_mass_truncation))

    def self_compose(self, num_times: int, tail_mass_truncation: float = 1e-15) -> "LossMasses":
        """The loss of so many independent steps.

        Of finite losses, masses of `tail_mass_truncation` are left out, and added to the mass of
        the infinite loss.
        """
        least, most = self._range(num_times, tail_mass_truncation)
        length = most - least + 1
        size = next_fast_len(max(length, self.size))
        # Transforms of real numbers would take half the time, and round otherwise: noise that was
        # calibrated to an epsilon would have another last digit.
        composed = np.real(ifft(fft(self._probs, size) ** num_times))
        infinity_mass = tail_mass_truncation - expm1(num_times * log1p(-self._infinity_mass))
        return LossMasses(
            self._discretization,
            self._lower_loss * num_times + least,
            np.roll(composed, -least)[:length],  # a sum wraps around, to its remainder
            infinity_mass,
            self._pessimistic_estimate,
        )

    def _range(self, num_times: int, tail_mass: float) -> tuple[int, int]:
        """Places of composed losses outside of which there is at most this mass, by Chernoff."""
        least, most = 0, (self.size - 1) * num_times
        fractions = np.arange(self.size) / self.size
        for sign in (1, -1):
            tilt = np.exp(sign * fractions)
            tilted = np.asarray(self._probs, np.float64)
            for order in range(1, _MOST_ORDER + 1):
                tilted = tilted * tilt
                moment = num_times * log(tilted.sum()) + log(2 / tail_mass)
                bound = sign * moment * self.size / order
                if isfinite(bound) and sign > 0:
                    most = min(most, ceil(bound))
                elif isfinite(bound):
                    least = max(least, floor(bound))
        return least, most

    @cached_property
    def _losses(self) -> NDArray[np.float64]:
        return np.asarray((np.arange(self.size) + self._lower_loss) * self._discretization)

    def get_delta_for_epsilon(self, epsilon: float) -> float:
        """The mass of losses above epsilon, less what these may have."""
        above = int(np.searchsorted(self._losses, epsilon, side="right"))
        shares = -np.expm1(epsilon - self._losses[above:])
        return float(self._infinity_mass + np.dot(shares, self._probs[above:]))

    def get_epsilon_for_delta(self, delta: float) -> float:
        """The least epsilon, not below 0, at which delta is at most this one; it may be infinite.

        With all masses of losses above epsilon, delta is upper - exp(epsilon) lower: upper is
        their sum, and lower that of masses times exp(-loss).
        """
        if self._infinity_mass > delta:
            return inf
        # The largest comes first. The parent's losses have the rounding of these additions.
        kept = self.size - max(0, 1 - self._lower_loss)  # those above 0
        if kept <= 0:
            return 0.0
        steps = np.full(kept, -self._discretization)
        steps[0] = (self._lower_loss + self.size - 1) * self._discretization
        losses, masses = np.cumsum(steps), self._probs[::-1][:kept]
        upper = self._infinity_mass + np.cumsum(masses)
        lower = np.cumsum(masses * np.exp(-losses))
        exceeds = upper > delta
        if not exceeds.any():
            return 0.0
        first = np.argmax(exceeds)
        if lower[first] == 0:  # exp(-loss) underflows
            return float(losses[first])
        # Rounding leaves masses below 0, by which a sum may fall back below delta.
        is_one = exceeds & (lower > 0)
        epsilons = np.full(kept, -inf)
        epsilons[is_one] = np.log(upper[is_one] - delta) - np.log(lower[is_one])
        # It is below the losses whose masses are summed, and must not be below others.
        is_one &= epsilons >= np.append(losses[1:], -inf)
        return max(0.0, float(epsilons[np.argmax(is_one)])) if is_one.any() else 0.0
