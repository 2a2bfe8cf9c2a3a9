"""The exact law of the position after each step, by numerical integration on a grid.

The density after a step is the integral of the density before it against a Gaussian kernel, on
each cell of the landscape. The trapezoidal rule with corrections at the ends of each cell is
accurate to the fourth power of the grid's spacing. All terms are positive and are summed without a
Fourier transform, so that densities keep their relative precision in the tails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.landscape.process import Landscape, Process

Array = NDArray[np.float64]

# Points per standard deviation of a step's noise. Epsilon is exact to 1e-4 (see the tests).
RESOLUTION = 24
# The kernel and the grid end so many standard deviations out: a mass of 1e-23 and 2e-19.
_KERNEL_REACH, _GRID_REACH = 10.0, 9.0
# Gregory's weights at the end of a cell.
_END_WEIGHTS = np.array([3 / 8, 7 / 6, 23 / 24])
_LEAST_POINTS = 2 * len(_END_WEIGHTS)
_MOST_POINTS = 2_000_000


@dataclass(frozen=True, eq=False)
class Law:
    """Densities of the position on a grid.

    Attributes:
        positions: in units of C, equally spaced, shape (points,).
        world0: densities at each recorded step, shape (steps, points).
        world1: the same for world 1.
    """

    positions: Array
    world0: Array
    world1: Array

    @property
    def spacing(self) -> float:
        """Of the grid."""
        return float(self.positions[1] - self.positions[0])


def exact_law(process: Process, steps: Sequence[int], *, resolution: int = RESOLUTION) -> Law:
    """The densities of both worlds after some steps.

    Args:
        process: both worlds.
        steps: ascending, at least 1.
        resolution: grid points per standard deviation of a step's noise.

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
    places = [(edge - first) / spacing for edge in edges]
    indices = [round(place) for place in places]
    if any(abs(place - index) > 1e-6 for place, index in zip(places, indices, strict=True)):
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
            density = _after_step(process.landscape, process.step_noise, density, positions, edges)
        if step in steps:  # without the error of the integration in the total mass
            kept.append(density / (density.sum() * float(positions[1] - positions[0])))
    return np.array(kept)


def _after_step(
    landscape: Landscape, noise: float, density: Array, positions: Array, edges: list[int]
) -> Array:
    """The density one step later."""
    spacing = float(positions[1] - positions[0])
    reach = ceil(_KERNEL_REACH * noise / spacing)
    offsets: Array = spacing * np.arange(-reach, reach + 1, dtype=np.float64)
    after = np.zeros_like(density)
    for move, mass in _masses_by_move(landscape, density * spacing, edges).items():
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
    found: dict[float, Array] = {}
    ends = [0, *edges, len(masses) - 1]
    for move, (low, high) in zip(landscape.moves, pairwise(ends), strict=True):
        part = masses[low : high + 1].copy()
        part[: len(_END_WEIGHTS)] *= _END_WEIGHTS
        part[-len(_END_WEIGHTS) :] *= _END_WEIGHTS[::-1]
        found.setdefault(move, np.zeros_like(masses))[low : high + 1] += part
    return found


def _gaussian(x: Array, deviation: float) -> Array:
    density: Array = np.exp(-0.5 * (x / deviation) ** 2) / (deviation * sqrt(2 * np.pi))
    return density
