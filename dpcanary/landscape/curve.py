"""The exact trade-off curve between two densities on a grid, and its epsilon."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpcanary.accounting.trade_off import ExactCurve
from dpcanary.checks import checked_real
from dpcanary.errors import AccountingError
from dpcanary.landscape.density import Law, exact_law
from dpcanary.landscape.process import process_of
from dpcanary.scoring.scores import ScoringContext

Array = NDArray[np.float64]

_LARGEST_EPSILON = 512.0


@dataclass(frozen=True, eq=False)
class DensityCurve(ExactCurve):
    """The curve of one step of a process.

    Attributes:
        world0: density of the position in world 0 on a grid, shape (points,).
        world1: the same for world 1.
        spacing: of the grid.
    """

    world0: Array
    world1: Array
    spacing: float

    def delta(self, epsilon: float) -> float:
        """See ExactCurve."""
        pairs = ((self.world0, self.world1), (self.world1, self.world0))
        return max(_hockey_stick(*pair, self.spacing, epsilon) for pair in pairs)

    def epsilon(self, delta: float) -> float:
        """See TradeOffCurve; the larger of both orders of the worlds, and 0 if none is needed."""
        checked_real("delta", delta, most=1.0)
        if self.delta(0.0) <= delta:
            return 0.0
        high = 1.0
        while self.delta(high) > delta:
            high *= 2
            if high > _LARGEST_EPSILON:
                raise AccountingError(f"epsilon is above {high / 2:g} at delta {delta:g}")
        return float(brentq(lambda epsilon: self.delta(epsilon) - delta, 0.0, high, xtol=1e-8))

    @cached_property
    def _errors(self) -> tuple[Array, Array]:
        """FPR and FNR of all likelihood-ratio tests."""
        masses0, masses1 = (_masses(one, self.spacing) for one in (self.world0, self.world1))
        known = (masses0 > 0) | (masses1 > 0)
        masses0, masses1 = masses0[known], masses1[known]
        with np.errstate(divide="ignore"):
            order = np.argsort(np.log(masses0) - np.log(masses1), kind="stable")[::-1]
        # Each is summed from the end where it is small, to be precise there.
        return _running(masses1[order]), _running(masses0[order][::-1])[::-1]

    def _fnr(self, fpr: Array) -> Array:
        return np.asarray(np.interp(fpr, *self._errors))


def curves_of(law: Law) -> list[DensityCurve]:
    """The curve of each step."""
    return [DensityCurve(*both, law.spacing) for both in zip(law.world0, law.world1, strict=True)]


def _masses(density: Array, spacing: float) -> Array:
    """Masses between grid points: the integrals of cubic polynomials through four points."""
    f = np.concatenate([[0.0], density, [0.0]])
    cells: Array = spacing / 24 * (13 * (f[1:-2] + f[2:-1]) - f[:-3] - f[3:])
    return np.maximum(cells, 0.0)


def _hockey_stick(first: Array, second: Array, spacing: float, epsilon: float) -> float:
    """The integral of (first - e^epsilon second) where it is positive."""
    scale = exp(epsilon)
    above = first > scale * second
    inside = above[:-1] & above[1:]
    whole = (_masses(first, spacing) - scale * _masses(second, spacing))[inside].sum()
    return float(whole) + _crossings(first, scale * second, spacing, above)


def _crossings(first: Array, second: Array, spacing: float, above: NDArray[np.bool_]) -> float:
    """The same integral over the intervals within which the sign changes.

    There, the logarithms of both densities are taken as straight lines.
    """
    [places] = np.nonzero(above[:-1] != above[1:])
    rising = above[places + 1]
    inner, outer = np.where(rising, places + 1, places), np.where(rising, places, places + 1)
    known = np.minimum(np.minimum(first[outer], second[outer]), second[inner]) > 0
    inner, outer = inner[known], outer[known]
    gap, gap_outer = (np.log(first[index] / second[index]) for index in (inner, outer))
    share = gap / (gap - gap_outer)  # of the interval, from the inner end to the crossing
    at_crossing = first[inner] * (first[outer] / first[inner]) ** share
    parts = [_log_mean(density[inner], at_crossing) for density in (first, second)]
    return float((spacing * share * (parts[0] - parts[1])).sum())


def _log_mean(one: Array, other: Array) -> Array:
    """The mean of a density between two points, if its logarithm is a straight line."""
    ratio = np.log(one / other)
    near = np.abs(ratio) < 1e-6
    return np.where(near, (one + other) / 2, (one - other) / np.where(near, 1.0, ratio))


def _running(masses: Array) -> Array:
    """Sums of the first 0, 1, ... masses."""
    return np.concatenate([[0.0], np.cumsum(masses)])


def likelihood_ratio(observed: Array, context: ScoringContext) -> Array:
    """Score: the exact log-likelihood ratio of the positions, shape (runs, steps, 1)."""
    process = process_of(context.runs_settings, noise_multiplier=context.noise_multiplier)
    law = exact_law(process, context.record_steps)
    # Smallest positive numbers in place of densities that underflow, far outside of all runs.
    logs0, logs1 = (np.log(np.maximum(one, 1e-300)) for one in (law.world0, law.world1))
    scores = [
        np.interp(observed[:, index], law.positions, logs0[index] - logs1[index])
        for index in range(len(context.record_steps))
    ]
    return np.stack(scores, axis=1)


def exact_curves(
    settings: Mapping[str, Any], *, noise_multiplier: float, steps: Sequence[int]
) -> list[DensityCurve]:
    """The exact trade-off curve of the final model, for each of some last steps.

    Args:
        settings: of the jobs that draw the runs.
        noise_multiplier: sigma.
        steps: ascending.
    """
    return curves_of(exact_law(process_of(settings, noise_multiplier=noise_multiplier), steps))
