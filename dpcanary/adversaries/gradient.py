"""S2: a gradient canary (Pradhan et al., Algorithm 2), and what others of its kind share."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.adversary_settings import Simulation
from dpcanary.adversaries.crafting import Crafting
from dpcanary.data.canaries import GradientCanary
from dpcanary.errors import InputError
from dpcanary.training.models import mechanism_of
from dpcanary.training.simulated_trainings import Movement, expected_changes, simulated_movement


def least_updated(crafting: Crafting) -> list[GradientCanary]:
    """Canaries in the coordinates that move least in a simulated training without noise.

    A canary is easiest to see where nothing else moves.
    """
    movement = movement_of(crafting, Simulation.NOISELESS, num_simulations=1)
    return canaries_in_first(np.argsort(movement.absolute, kind="stable"), crafting)


def movement_of(crafting: Crafting, simulation: Simulation, *, num_simulations: int) -> Movement:
    """How far each parameter moves in simulated trainings."""
    stage = crafting.stage
    dpsgd = mechanism_of(stage, record_steps=(stage.num_steps,), noise_multiplier=0.0)
    if simulation is Simulation.UNCLIPPED:
        dpsgd = replace(dpsgd, max_grad_norm=inf)
    elif simulation is Simulation.NOISY:
        assert crafting.noise_multiplier is not None
        dpsgd = replace(dpsgd, noise_multiplier=crafting.noise_multiplier)
    with crafting.progress(stage.num_steps, "step") as bar:
        return simulated_movement(
            dpsgd=dpsgd,
            targets=crafting.left_out,
            num_simulations=num_simulations,
            on_progress=bar.update,
            **_trained_on(crafting),
        )


def _trained_on(crafting: Crafting) -> dict[str, Any]:
    """What all simulations of an audit's training share."""
    return {
        "module": crafting.module,
        "records": crafting.data.private,
        "initialisation": crafting.stage.initialisation,
        "seed": crafting.stage.seed,
        "device": crafting.device,
    }


def canaries_in_first(order: NDArray[np.int64], crafting: Crafting) -> list[GradientCanary]:
    """A canary for the target of each slot, in the first coordinates of an order of all of them.

    Several canaries know the drift of their coordinates, which differs between slots.
    """
    stage = crafting.stage
    if stage.num_slots > len(order):
        raise InputError(
            f"num_slots {stage.num_slots} is more than the model's {len(order)} parameters"
        )
    coordinates = order[: stage.num_slots]
    canaries = [
        GradientCanary(coordinate, target.index)
        for coordinate, target in zip(coordinates.tolist(), crafting.targets, strict=True)
    ]
    if not stage.drift_steps:
        return canaries
    with crafting.progress(stage.num_steps, "step") as bar:
        drifts = expected_changes(
            dpsgd=mechanism_of(stage, record_steps=stage.drift_steps, noise_multiplier=0.0),
            targets=crafting.replaced,
            coordinates=coordinates,
            on_progress=bar.update,
            **_trained_on(crafting),
        )
    return [
        replace(canary, drift=tuple(drift))
        for canary, drift in zip(canaries, drifts.T.tolist(), strict=True)
    ]
