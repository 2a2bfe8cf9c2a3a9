"""The process of Cebere et al., Section 6: a canary in the first step, then a crafted landscape.

In units of the clipping norm C, the model is a position x. It starts at x_1 = c + sigma Z_1, where
c tells the two worlds apart. Every further step adds the move of the landscape at x, which is from
-1 to 1, and noise of sigma / B.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dpcanary.adjacency import Adjacency
from dpcanary.choice import Choice
from dpcanary.errors import InputError


class LandscapeShape(Choice):
    """What the gradients of a crafted loss do on both sides of its threshold.

    Attributes:
        DIVERGING: they push the two sides apart. The results of Cebere et al. need this.
        CONVERGING: they pull the two sides together, as Cebere et al. print their signs.
    """

    DIVERGING = "diverging"
    CONVERGING = "converging"


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
    """Both worlds of the process, in units of C.

    Attributes:
        landscape: of all steps after the first.
        starts: mean position after the first step, of world 0 and of world 1.
        first_noise: standard deviation of the first step's noise.
        step_noise: that of each further step.
    """

    landscape: Landscape
    starts: tuple[float, float]
    first_noise: float
    step_noise: float


def two_levels(*, threshold: float, shape: LandscapeShape) -> Landscape:
    """The landscape of Cebere et al.: the largest gradients, with opposite signs, at a threshold.

    Args:
        threshold: in units of C.
        shape: which side is pushed where.
    """
    up = 1.0 if shape is LandscapeShape.DIVERGING else -1.0
    return Landscape(edges=(threshold,), moves=(-up, up))


def middle(adjacency: Adjacency) -> float:
    """The position in the middle between the worlds, where both are equally likely.

    Example:
        >>> middle(Adjacency.ADD_REMOVE), middle(Adjacency.SUBSTITUTE)
        (0.5, 0.0)
    """
    return sum(_STARTS[adjacency]) / 2


def process_of(settings: Mapping[str, Any], *, noise_multiplier: float) -> Process:
    """The process that the settings of an audit describe.

    Args:
        settings: `adjacency`, `batch_size`, `landscape` and `landscape_threshold`.
        noise_multiplier: sigma.
    """
    shape = LandscapeShape(settings["landscape"])
    return Process(
        landscape=two_levels(threshold=settings["landscape_threshold"], shape=shape),
        starts=_STARTS[Adjacency(settings["adjacency"])],
        first_noise=noise_multiplier,
        step_noise=noise_multiplier / settings["batch_size"],
    )
