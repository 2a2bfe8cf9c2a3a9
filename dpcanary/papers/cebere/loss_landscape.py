"""A_S: the canary enters the first step, and a crafted loss keeps the worlds apart afterwards.

It is the adversary of Cebere et al., Section 6. In units of the clipping norm C, the model is a
position x, which is drawn directly. It starts at x_1 = c + sigma Z_1, where c tells the two worlds
apart. Every further step adds the move of the landscape at x, which is from -1 to 1, and noise of
sigma / B.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.adversary_settings import LandscapeShape, Purpose
from dpcanary.adversaries.drawing import RUNS_PER_STREAM, Drawing
from dpcanary.core.adjacency import Adjacency
from dpcanary.errors import InputError

Array = NDArray[np.float64]

# Where the two worlds start: world 0 has the gradient +C, world 1 has -C or no gradient.
_STARTS = {Adjacency.ADD_REMOVE: (1.0, 0.0), Adjacency.SUBSTITUTE: (1.0, -1.0)}


@dataclass(frozen=True)
class Landscape:
    """A loss whose gradient is constant between edges.

    Attributes:
        edges: positions, ascending; at least one.
        moves: what a step adds to a position below the first edge, between edges, and above the
            last one: -g / (B C) for the sum g of a batch's gradients, from -1 to 1.
    """

    edges: tuple[float, ...]
    moves: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.edges or any(low >= high for low, high in pairwise(self.edges)):
            raise InputError(f"edges are {self.edges}; they must ascend, and there must be one")
        if len(self.moves) != len(self.edges) + 1:
            raise InputError(f"{len(self.edges)} edges need {len(self.edges) + 1} moves")
        if not all(-1 <= move <= 1 for move in self.moves):
            raise InputError(f"moves are {self.moves}; gradients of norm C allow -1 to 1")


@dataclass(frozen=True)
class Process:
    """Both worlds of the process, in units of C."""

    landscape: Landscape  # of all steps after the first
    starts: tuple[float, float]  # mean position after the first step, of world 0 and of world 1
    first_noise: float  # standard deviation of the first step's noise
    step_noise: float  # that of each further step


def two_levels(*, threshold: float, shape: LandscapeShape) -> Landscape:
    """The landscape of Cebere et al.: the largest gradients, of opposite signs, at a threshold."""
    up = 1.0 if shape is LandscapeShape.DIVERGING else -1.0
    return Landscape(edges=(threshold,), moves=(-up, up))


def middle(adjacency: Adjacency) -> float:
    """The position in the middle between the worlds, where both are equally likely.

    Example:
        >>> middle(Adjacency.ADD_REMOVE), middle(Adjacency.SUBSTITUTE)
        (0.5, 0.0)
    """
    return sum(_STARTS[adjacency]) / 2


def default_landscape(adjacency: Adjacency) -> dict[str, Any]:
    """The landscape that a config leaves open: the worlds diverge from the middle between them."""
    return {"landscape": LandscapeShape.DIVERGING, "landscape_threshold": middle(adjacency)}


def process_of(settings: Mapping[str, Any], *, noise_multiplier: float) -> Process:
    """The process of an audit with these settings.

    They are `adjacency`, `batch_size`, `landscape` and `landscape_threshold`.
    """
    shape = LandscapeShape(settings["landscape"])
    return Process(
        landscape=two_levels(threshold=settings["landscape_threshold"], shape=shape),
        starts=_STARTS[Adjacency(settings["adjacency"])],
        first_noise=noise_multiplier,
        step_noise=noise_multiplier / settings["batch_size"],
    )


def draw_positions(drawing: Drawing) -> Array:
    """Draws the model after each recorded step, in units of C, shape (runs, steps)."""
    stage = drawing.stage
    process = process_of(stage.model_dump(), noise_multiplier=drawing.noise_multiplier)
    steps = np.array(stage.record_steps) - 1
    positions = []
    for stream, rows, worlds in drawing.streams(Purpose.LOSS_LANDSCAPE):
        noise = stream.standard_normal((stage.record_steps[-1], RUNS_PER_STREAM))
        positions.append(_positions(process, noise[:, rows], worlds)[steps])
    return np.concatenate(positions, axis=1).T


def _positions(process: Process, noise: Array, worlds: NDArray[np.int64]) -> Array:
    """The positions after every step; noise and result have shape (steps, runs)."""
    edges, moves = np.array(process.landscape.edges), np.array(process.landscape.moves)
    positions = np.empty_like(noise)
    positions[0] = np.array(process.starts)[worlds] + process.first_noise * noise[0]
    for step in range(1, len(noise)):
        before = positions[step - 1]
        positions[step] = before + moves[np.searchsorted(edges, before)]
        positions[step] += process.step_noise * noise[step]
    return positions
