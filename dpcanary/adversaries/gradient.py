"""S2: gradient canaries (Pradhan et al., Algorithm 2; after Cebere et al., A_GC-S)."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.crafting import Crafting
from dpcanary.canaries import GradientCanary
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.drift import expected_changes
from dpcanary.training.models import mechanism_of
from dpcanary.training.simulation import Movement, simulated_movement


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
