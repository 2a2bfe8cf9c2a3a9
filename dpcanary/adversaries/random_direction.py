"""Gradient canaries in random directions (Cebere et al., Algorithm 8; after Andrew et al.)."""

import numpy as np

from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.purposes import Purpose
from dpcanary.canaries import DirectionCanary

# A canary in float32 may be this much longer than in exact arithmetic.
_ROUNDING = 1e-6


def random_directions(crafting: Crafting) -> list[DirectionCanary]:
    """Canaries of length C, in directions that are uniform on the sphere."""
    stream, canaries = crafting.generator(Purpose.DIRECTIONS), []
    assert crafting.stage.max_grad_norm is not None  # gradients need privacy
    for target in crafting.targets:
        drawn = stream.standard_normal(crafting.num_parameters)
        length = crafting.stage.max_grad_norm * (1 - _ROUNDING)
        gradient = drawn * (length / np.linalg.norm(drawn))
        canaries.append(DirectionCanary(gradient.astype(np.float32), target.index))
    return canaries
