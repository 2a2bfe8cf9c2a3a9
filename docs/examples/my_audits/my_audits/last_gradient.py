"""A process of which the last noisy gradient is seen."""

import numpy as np

from dpcanary.extend import Adversary, Drawing, Inserts, Score


def draw(drawing: Drawing) -> np.ndarray:
    """Noisy gradients along the target's, in units of C; shape (runs, recorded steps)."""
    stage, size = drawing.stage, len(drawing.stage.record_steps)
    seen = []
    for run, world in zip(drawing.runs, drawing.worlds, strict=True):
        stream = drawing.generator(run)
        sampled = stream.random(size) < stage.sample_rate
        noise = drawing.noise_multiplier * stream.standard_normal(size)
        seen.append((1 - 2 * world) * sampled + noise)
    return np.stack(seen)


LAST_GRADIENT = Adversary(
    name="last_gradient",
    label="last gradient",
    description="gradient +C against -C, of which the last step alone is seen",
    source="an example of docs/adding.md",
    inserts=Inserts.PROCESS,
    function="my_audits.last_gradient:draw",
    scores=(Score("gradient", "dpcanary.scoring.scores:as_observed", "gradient"),),
)
