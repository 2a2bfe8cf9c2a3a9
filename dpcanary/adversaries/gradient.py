"""S2: gradient canaries (Pradhan et al., Algorithm 2; after Cebere et al., A_GC-S)."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.adversary_settings import Purpose, Ranking, Simulation
from dpcanary.adversaries.crafting import Crafting
from dpcanary.data.canaries import DirectionCanary, GradientCanary
from dpcanary.errors import InputError
from dpcanary.training.models import mechanism_of
from dpcanary.training.simulated_trainings import Movement, expected_changes, simulated_movement
from dpcanary.training.training_settings import Initialisation, Sampling

# A canary in float32 may be this much longer than in exact arithmetic.
_ROUNDING = 1e-6


def least_updated(crafting: Crafting) -> list[GradientCanary]:
    """Canaries in the coordinates that move least in a simulated training without noise.

    A canary is easiest to see where nothing else moves.
    """
    movement = _movement(crafting, Simulation.NOISELESS, num_simulations=1)
    return _in_first(np.argsort(movement.absolute, kind="stable"), crafting)


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
    movement = _movement(crafting, stage.simulation, num_simulations=count)
    ranked = movement.squared if stage.ranking is Ranking.PER_STEP else movement.final
    return _in_first(np.argsort(ranked, kind="stable"), crafting)


def random_dimensions(crafting: Crafting) -> list[GradientCanary]:
    """Canaries in coordinates that are drawn at random (A_GC-R)."""
    stream = crafting.generator(Purpose.DIMENSIONS)
    return _in_first(stream.permutation(crafting.num_parameters), crafting)


def random_directions(crafting: Crafting) -> list[DirectionCanary]:
    """Canaries of length C, in directions that are uniform on the sphere."""
    stream, canaries = crafting.generator(Purpose.DIRECTIONS), []
    for target in crafting.targets:
        drawn = stream.standard_normal(crafting.num_parameters)
        length = crafting.stage.max_grad_norm * (1 - _ROUNDING)
        gradient = drawn * (length / np.linalg.norm(drawn))
        canaries.append(DirectionCanary(gradient.astype(np.float32), target.index))
    return canaries


def _movement(crafting: Crafting, simulation: Simulation, *, num_simulations: int) -> Movement:
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


def _in_first(order: NDArray[np.int64], crafting: Crafting) -> list[GradientCanary]:
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
