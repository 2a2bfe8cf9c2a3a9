"""A_S: the canary enters the first step, and a crafted loss keeps the worlds apart afterwards.

It is the adversary of Cebere et al., Section 6. Runs are positions on a line (see
`dpcanary.landscape.process`) and are drawn directly, without a model.
"""

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.drawing import RUNS_PER_STREAM, Drawing
from dpcanary.adversaries.settings import Purpose
from dpcanary.landscape.process import Process, process_of

Array = NDArray[np.float64]


def draw_positions(drawing: Drawing) -> Array:
    """Draws the model after each recorded step, in units of C, shape (runs, steps)."""
    stage = drawing.stage
    process = process_of(stage.model_dump(), noise_multiplier=drawing.noise_multiplier)
    positions = []
    for stream, rows, worlds in drawing.streams(Purpose.LOSS_LANDSCAPE):
        noise = stream.standard_normal((stage.record_steps[-1], RUNS_PER_STREAM))
        positions.append(_positions(process, noise[:, rows], worlds))
    steps = np.array(stage.record_steps) - 1
    return np.concatenate([part[steps] for part in positions], axis=1).T


def _positions(process: Process, noise: Array, worlds: NDArray[np.int64]) -> Array:
    """The positions after every step; noise and result have shape (steps, runs)."""
    landscape = process.landscape
    edges, moves = np.array(landscape.edges), np.array(landscape.moves)
    found = np.empty_like(noise)
    found[0] = np.array(process.starts)[worlds] + process.first_noise * noise[0]
    for step in range(1, len(noise)):
        before = found[step - 1]
        found[step] = before + moves[np.searchsorted(edges, before)]
        found[step] += process.step_noise * noise[step]
    return found
