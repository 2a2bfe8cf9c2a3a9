"""Gradient canaries in simulated and random coordinates, and in random directions."""

import numpy as np

from dpcanary.adversaries.adversary_settings import Purpose, Ranking, Simulation
from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.gradient import canaries_in_first, movement_of
from dpcanary.data.canaries import DirectionCanary, GradientCanary
from dpcanary.training.training_settings import Initialisation, Sampling

# A canary in float32 may be this much longer than in exact arithmetic.
_ROUNDING = 1e-6


def simulated_dimensions(crafting: Crafting) -> list[GradientCanary]:
    """Canaries in the coordinates that move least in simulated trainings (A_GC-S).

    The paper simulates four trainings. If nothing in them is random, these are all alike, and one
    is enough.
    """
    stage = crafting.stage
    all_alike = (
        stage.simulation is not Simulation.NOISY
        and stage.sampling is Sampling.FIXED
        and stage.initialisation is not Initialisation.PER_RUN
    )
    count = 1 if all_alike else stage.num_simulations
    movement = movement_of(crafting, stage.simulation, num_simulations=count)
    ranked = movement.squared if stage.ranking is Ranking.PER_STEP else movement.final
    return canaries_in_first(np.argsort(ranked, kind="stable"), crafting)


def random_dimensions(crafting: Crafting) -> list[GradientCanary]:
    """Canaries in coordinates that are drawn at random (A_GC-R)."""
    stream = crafting.generator(Purpose.DIMENSIONS)
    return canaries_in_first(stream.permutation(crafting.num_parameters), crafting)


def random_directions(crafting: Crafting) -> list[DirectionCanary]:
    """Canaries of length C, in directions that are uniform on the sphere."""
    stream, canaries = crafting.generator(Purpose.DIRECTIONS), []
    for target in crafting.targets:
        drawn = stream.standard_normal(crafting.num_parameters)
        length = crafting.stage.max_grad_norm * (1 - _ROUNDING)
        gradient = drawn * (length / np.linalg.norm(drawn))
        canaries.append(DirectionCanary(gradient.astype(np.float32), target.index))
    return canaries
