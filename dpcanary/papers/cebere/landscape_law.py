"""The exact law of positions in a crafted landscape, and the trade-off curve between the worlds.

The density after a step is the integral of the density before it against a Gaussian kernel, on
each cell of the landscape. The trapezoidal rule with corrections at the ends of each cell is
accurate to the fourth power of the grid's spacing. All terms are positive and are summed without a
Fourier transform, so that densities keep their relative precision in the tails.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, exp, floor, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpcanary.accounting.curve import ExactCurve
from dpcanary.core.argument_checks import checked_real
from dpcanary.errors import AccountingError, InputError
from dpcanary.papers.cebere.loss_landscape import Landscape, Process, process_of
from dpcanary.scoring.scores import ScoringContext

Array = NDArray[np.float64]

# Points per standard deviation of a step's noise. Epsilon is exact to 1e-4 (see the tests).
RESOLUTION = 24
# The kernel and the grid end so many standard deviations out: a mass of 1e-23 and 2e-19.
_KERNEL_REACH, _GRID_REACH = 10.0, 9.0
# Gregory's weights at the end of a cell.
_END_WEIGHTS = np.array([3 / 8, 7 / 6, 23 / 24])
_LEAST_POINTS = 2 * len(_END_WEIGHTS)
_MOST_POINTS = 2_000_000
_LARGEST_EPSILON = 512.0


@dataclass(frozen=True, eq=False)
class Law:
    """Densities of the position in each world at each recorded step, shape (steps, points).

    Positions are in units of C and equally spaced, shape (points,).
    """

    positions: Array
    world0: Array
    world1: Array

    @property
    def spacing(self) -> float:
        """The spacing of the grid."""
        return float(self.positions[1] - self.positions[0])


def exact_law(process: Process, steps: Sequence[int], *, resolution: int = RESOLUTION) -> Law:
    """The densities of both worlds after some steps (ascending, at least 1).

    The grid has `resolution` points per standard deviation of a step's noise.

    Raises:
        InputError: if the landscape's cells do not fit on a grid.
    """
    positions, edges = _grid(process, max(steps), resolution)
    worlds = [_densities(process, start, positions, edges, steps) for start in process.starts]
    return Law(positions, *worlds)


def _grid(process: Process, num_steps: int, resolution: int) -> tuple[Array, list[int]]:
    """Equally spaced positions that include all edges, and the indices of these."""
    edges, noise = process.landscape.edges, process.step_noise
    spacing = noise / resolution
    if len(edges) > 1:
        gap = min(high - low for low, high in pairwise(edges))
        spacing = gap / max(_LEAST_POINTS, ceil(gap / spacing))
    reach = num_steps + _GRID_REACH * sqrt(process.first_noise**2 + (num_steps - 1) * noise**2)
    first = edges[0]
    low = floor((min(*edges, *process.starts) - reach - first) / spacing)
    high = ceil((max(*edges, *process.starts) + reach - first) / spacing)
    if high - low > _MOST_POINTS:
        raise InputError(
            f"the law needs {high - low:,} grid points: give a larger noise_multiplier, a smaller"
            " batch_size, or fewer steps"
        )
    edge_positions = [(edge - first) / spacing for edge in edges]
    indices = [round(place) for place in edge_positions]
    if any(abs(place - index) > 1e-6 for place, index in zip(edge_positions, indices, strict=True)):
        raise InputError("the edges of the landscape must be multiples of its smallest gap apart")
    positions: Array = first + spacing * np.arange(low, high + 1, dtype=np.float64)
    return positions, [index - low for index in indices]


def _densities(
    process: Process, start: float, positions: Array, edges: list[int], steps: Sequence[int]
) -> Array:
    density = _gaussian(positions - start, process.first_noise)
    kept = []
    for step in range(1, max(steps) + 1):
        if step > 1:
            density = _after_step(process, density, positions, edges)
        if step in steps:  # without the error of the integration in the total mass
            kept.append(density / (density.sum() * float(positions[1] - positions[0])))
    return np.array(kept)


def _after_step(process: Process, density: Array, positions: Array, edges: list[int]) -> Array:
    """The density one step later."""
    noise, spacing = process.step_noise, float(positions[1] - positions[0])
    reach = ceil(_KERNEL_REACH * noise / spacing)
    offsets: Array = spacing * np.arange(-reach, reach + 1, dtype=np.float64)
    after = np.zeros_like(density)
    for move, mass in _masses_by_move(process.landscape, density * spacing, edges).items():
        # The kernel is centred on the grid point that is next to the move.
        shift = round(move / spacing)
        kernel = _gaussian(offsets - (move - shift * spacing), noise)
        moved = np.convolve(mass, kernel, mode="same")
        if shift >= 0:
            after[shift:] += moved[: len(moved) - shift]
        else:
            after[:shift] += moved[-shift:]
    return after


def _masses_by_move(landscape: Landscape, masses: Array, edges: list[int]) -> dict[float, Array]:
    """The weighted masses that each move acts on. An edge belongs to the cells on both sides."""
    by_move: dict[float, Array] = {}
    ends = [0, *edges, len(masses) - 1]
    for move, (low, high) in zip(landscape.moves, pairwise(ends), strict=True):
        part = masses[low : high + 1].copy()
        part[: len(_END_WEIGHTS)] *= _END_WEIGHTS
        part[-len(_END_WEIGHTS) :] *= _END_WEIGHTS[::-1]
        by_move.setdefault(move, np.zeros_like(masses))[low : high + 1] += part
    return by_move


def _gaussian(x: Array, deviation: float) -> Array:
    return np.exp(-0.5 * (x / deviation) ** 2) / (deviation * sqrt(2 * np.pi))


@dataclass(frozen=True, eq=False)
class DensityCurve(ExactCurve):
    """The curve of one step of a process: densities of both worlds on a grid, shape (points,)."""

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
        masses0, masses1 = (_masses(world, self.spacing) for world in (self.world0, self.world1))
        positive = (masses0 > 0) | (masses1 > 0)
        masses0, masses1 = masses0[positive], masses1[positive]
        with np.errstate(divide="ignore"):
            order = np.argsort(np.log(masses0) - np.log(masses1), kind="stable")[::-1]
        # Each is summed from the end where it is small, to be precise there.
        fpr = np.cumsum(np.append(0.0, masses1[order]))
        fnr = np.cumsum(np.append(0.0, masses0[order][::-1]))[::-1]
        return fpr, fnr

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
    """The integral over the intervals within which the sign changes.

    There, the logarithms of both densities are taken as straight lines.
    """
    [crossings] = np.nonzero(above[:-1] != above[1:])
    rising = above[crossings + 1]
    inner, outer = (
        np.where(rising, crossings + 1, crossings),
        np.where(rising, crossings, crossings + 1),
    )
    positive = np.minimum(np.minimum(first[outer], second[outer]), second[inner]) > 0
    inner, outer = inner[positive], outer[positive]
    gap, gap_outer = (np.log(first[index] / second[index]) for index in (inner, outer))
    share = gap / (gap - gap_outer)  # of the interval, from the inner end to the crossing
    at_crossing = first[inner] * (first[outer] / first[inner]) ** share
    parts = [_log_mean(density[inner], at_crossing) for density in (first, second)]
    return float((spacing * share * (parts[0] - parts[1])).sum())


def _log_mean(first: Array, other: Array) -> Array:
    """The mean of a density between two points, if its logarithm is a straight line."""
    ratio = np.log(first / other)
    near = np.abs(ratio) < 1e-6
    return np.where(near, (first + other) / 2, (first - other) / np.where(near, 1.0, ratio))


def likelihood_ratio(observed: Array, context: ScoringContext) -> Array:
    """Score: the exact log-likelihood ratio of the positions, shape (runs, steps, 1)."""
    process = process_of(context.runs_settings, noise_multiplier=context.noise_multiplier)
    law = exact_law(process, context.record_steps)
    # Smallest positive numbers in place of densities that underflow, far outside of all runs.
    logs0, logs1 = (np.log(np.maximum(world, 1e-300)) for world in (law.world0, law.world1))
    scores = [
        np.interp(observed[:, index], law.positions, logs0[index] - logs1[index])
        for index in range(len(context.record_steps))
    ]
    return np.stack(scores, axis=1)


def exact_curves(
    settings: Mapping[str, Any], *, noise_multiplier: float, steps: Sequence[int]
) -> list[DensityCurve]:
    """The exact trade-off curve of the final model, for each of some last steps, ascending.

    `settings` are those of the jobs that draw the runs.
    """
    return curves_of(exact_law(process_of(settings, noise_multiplier=noise_multiplier), steps))
