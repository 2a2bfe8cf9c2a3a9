"""S2: gradient canaries (Pradhan et al., Algorithm 2; after Cebere et al., A_GC-S)."""

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.crafting import Crafting
from dpcanary.canaries import GradientCanary
from dpcanary.errors import InputError
from dpcanary.training.models import mechanism_of
from dpcanary.training.simulation import simulated_movement


def least_updated(crafting: Crafting) -> list[GradientCanary]:
    """Canaries in the coordinates that move least in a simulated training without noise.

    A canary is easiest to see where nothing else moves.

    Raises:
        InputError: if there are more slots than parameters, or the simulation diverges.
    """
    stage = crafting.stage
    with crafting.progress(stage.num_steps, "step") as bar:
        moved = simulated_movement(
            module=crafting.module,
            records=crafting.data.private,
            dpsgd=mechanism_of(stage, record_steps=(stage.num_steps,), noise_multiplier=0.0),
            initialisation=stage.initialisation,
            seed=stage.seed,
            device=crafting.device,
            targets=crafting.left_out,
            on_progress=bar.update,
        )
    coordinates = least_updated_coordinates(moved.absolute, num_slots=stage.num_slots).tolist()
    return [
        GradientCanary(coordinate, target.index)
        for coordinate, target in zip(coordinates, crafting.targets, strict=True)
    ]


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
    if num_slots > len(movement):
        raise InputError(
            f"num_slots {num_slots} is more than the model's {len(movement)} parameters"
        )
    return np.argsort(movement, kind="stable")[:num_slots]
