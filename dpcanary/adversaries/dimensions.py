"""Gradient canaries in one coordinate (Cebere et al., Algorithms 2 and 3)."""

from dataclasses import replace
from math import inf

from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.gradient import (
    canaries_in,
    check_slots,
    least_updated_coordinates,
    movement_of,
)
from dpcanary.adversaries.options import Ranking, Simulation
from dpcanary.adversaries.purposes import Purpose
from dpcanary.canaries import GradientCanary
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.models import mechanism_of
from dpcanary.training.options import Initialisation, Sampling


def random_dimensions(crafting: Crafting) -> list[GradientCanary]:
    """Canaries in coordinates that are drawn at random (A_GC-R).

    Raises:
        InputError: if there are more slots than parameters.
    """
    count, slots = crafting.num_parameters, crafting.stage.num_slots
    check_slots(slots, num_parameters=count)
    stream = crafting.generator(Purpose.DIMENSIONS)
    return canaries_in(stream.permutation(count)[:slots], crafting)


def simulated_dimensions(crafting: Crafting) -> list[GradientCanary]:
    """Canaries in the coordinates that move least in simulated trainings (A_GC-S).

    The paper simulates four trainings. If nothing in them is random, these are all alike, and one
    is enough.

    Raises:
        InputError: if there are more slots than parameters, or a simulation diverges.
    """
    stage, mechanism = crafting.stage, _simulated(crafting)
    assert stage.num_simulations is not None
    count = 1 if _is_deterministic(crafting) else stage.num_simulations
    moved = movement_of(crafting, mechanism, num_simulations=count)
    ranked = moved.squared if stage.ranking is Ranking.PER_STEP else moved.final
    coordinates = least_updated_coordinates(ranked, num_slots=stage.num_slots)
    return canaries_in(coordinates, crafting)


def _simulated(crafting: Crafting) -> DPSGD:
    """The mechanism that is simulated."""
    stage = crafting.stage
    plain = mechanism_of(stage, record_steps=(stage.num_steps,), noise_multiplier=0.0)
    match stage.simulation:
        case Simulation.NOISELESS:
            return plain
        case Simulation.UNCLIPPED:
            return replace(plain, max_grad_norm=inf)
        case Simulation.NOISY:
            assert crafting.noise_multiplier is not None
            return replace(plain, noise_multiplier=crafting.noise_multiplier)
        case None:
            raise InputError("simulated canaries need a stage that names the simulation")


def _is_deterministic(crafting: Crafting) -> bool:
    stage = crafting.stage
    return (
        stage.simulation is not Simulation.NOISY
        and stage.sampling is Sampling.FIXED
        and stage.initialisation is not Initialisation.PER_RUN
    )
