"""S2: gradient canaries (Pradhan et al., Algorithm 2; after Cebere et al., A_GC-S)."""

from dataclasses import replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.settings import Purpose, Ranking, Simulation
from dpcanary.canaries import DirectionCanary, GradientCanary
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.models import mechanism_of
from dpcanary.training.settings import Initialisation, Sampling
from dpcanary.training.simulation import Movement, expected_changes, simulated_movement


def least_updated(crafting: Crafting) -> list[GradientCanary]:
    """Canaries in the coordinates that move least in a simulated training without noise.

    A canary is easiest to see where nothing else moves.

    Raises:
        InputError: if there are more slots than parameters, or the simulation diverges.
    """
    stage = crafting.stage
    noiseless = mechanism_of(stage, record_steps=(stage.num_steps,), noise_multiplier=0.0)
    moved = movement_of(crafting, noiseless, num_simulations=1)
    coordinates = least_updated_coordinates(moved.absolute, num_slots=stage.num_slots)
    return canaries_in(coordinates, crafting)


def movement_of(crafting: Crafting, dpsgd: DPSGD, *, num_simulations: int) -> Movement:
    """How far each parameter moves in trainings that the adversary simulates, with progress.

    Raises:
        InputError: if a simulation diverges.
    """
    stage = crafting.stage
    with crafting.progress(stage.num_steps, "step") as bar:
        return simulated_movement(
            module=crafting.module,
            records=crafting.data.private,
            dpsgd=dpsgd,
            initialisation=stage.initialisation,
            seed=stage.seed,
            device=crafting.device,
            targets=crafting.left_out,
            num_simulations=num_simulations,
            on_progress=bar.update,
        )


def canaries_in(coordinates: NDArray[np.int64], crafting: Crafting) -> list[GradientCanary]:
    """A canary in each coordinate, for the target of each slot.

    Several canaries know the drift of their coordinates, which differs between slots.

    Raises:
        InputError: if the training that tells the drift diverges.
    """
    canaries = [
        GradientCanary(coordinate, target.index)
        for coordinate, target in zip(coordinates.tolist(), crafting.targets, strict=True)
    ]
    if not crafting.stage.drift_steps:
        return canaries
    drifts = _drifts(coordinates, crafting).T.tolist()
    return [
        replace(canary, drift=tuple(drift)) for canary, drift in zip(canaries, drifts, strict=True)
    ]


def _drifts(coordinates: NDArray[np.int64], crafting: Crafting) -> NDArray[np.float64]:
    """Expected changes without canaries, after each recorded step, shape (steps, K)."""
    stage = crafting.stage
    with crafting.progress(stage.num_steps, "step") as bar:
        return expected_changes(
            module=crafting.module,
            records=crafting.data.private,
            dpsgd=mechanism_of(stage, record_steps=stage.drift_steps, noise_multiplier=0.0),
            initialisation=stage.initialisation,
            seed=stage.seed,
            device=crafting.device,
            targets=crafting.replaced,
            coordinates=coordinates,
            on_progress=bar.update,
        )


def least_updated_coordinates(
    movement: NDArray[np.float64], *, num_slots: int
) -> NDArray[np.int64]:
    """The coordinates that move least, shape (num_slots,), the one that moves least first.

    `movement` says how far each parameter moves in simulated trainings, shape (parameters,).

    Raises:
        InputError: if there are fewer parameters than slots.

    Example:
        >>> least_updated_coordinates(np.array([0.5, 0.1, 0.3]), num_slots=2).tolist()
        [1, 2]
    """
    check_slots(num_slots, num_parameters=len(movement))
    return np.argsort(movement, kind="stable")[:num_slots]


def check_slots(num_slots: int, *, num_parameters: int) -> None:
    """Refuses more slots than there are coordinates.

    Raises:
        InputError: if there are fewer parameters than slots.
    """
    if num_slots > num_parameters:
        raise InputError(
            f"num_slots {num_slots} is more than the model's {num_parameters} parameters"
        )


# A canary in float32 may be this much longer than in exact arithmetic.
_ROUNDING = 1e-6


def random_directions(crafting: Crafting) -> list[DirectionCanary]:
    """Canaries of length C, in directions that are uniform on the sphere."""
    stream, canaries = crafting.generator(Purpose.DIRECTIONS), []
    for target in crafting.targets:
        drawn = stream.standard_normal(crafting.num_parameters)
        length = crafting.stage.max_grad_norm * (1 - _ROUNDING)
        gradient = drawn * (length / np.linalg.norm(drawn))
        canaries.append(DirectionCanary(gradient.astype(np.float32), target.index))
    return canaries


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
