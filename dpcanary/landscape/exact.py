"""What the exact law of a crafted landscape gives to the stages: a score, and upper bounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.landscape.curve import DensityCurve, curves_of
from dpcanary.landscape.density import exact_law
from dpcanary.landscape.process import process_of
from dpcanary.scoring.scores import ScoringContext

Array = NDArray[np.float64]


def likelihood_ratio(observed: Array, context: ScoringContext) -> Array:
    """Score: the exact log-likelihood ratio of the positions, shape (runs, steps, 1)."""
    process = process_of(context.runs_settings, noise_multiplier=context.noise_multiplier)
    law = exact_law(process, context.record_steps)
    # Smallest positive numbers in place of densities that underflow, far outside of all runs.
    logs0, logs1 = (np.log(np.maximum(one, 1e-300)) for one in (law.world0, law.world1))
    scores = [
        np.interp(observed[:, index], law.positions, logs0[index] - logs1[index])
        for index in range(len(context.record_steps))
    ]
    return np.stack(scores, axis=1)


def exact_curves(
    settings: Mapping[str, Any], *, noise_multiplier: float, steps: Sequence[int]
) -> list[DensityCurve]:
    """The exact trade-off curve of the final model, for each of some last steps.

    Args:
        settings: of the jobs that draw the runs.
        noise_multiplier: sigma.
        steps: ascending.
    """
    return curves_of(exact_law(process_of(settings, noise_multiplier=noise_multiplier), steps))
