"""Secrets of a known law in their worst case: each value of a slot has a gradient of its own.

In units of C, the k values of a slot have as gradients the corners of a regular simplex, which have
length 1 and the distance sqrt(2 k / (k - 1)) from each other. No k vectors of this length are
further apart. Two values are +1 and -1, the worst case under substitute adjacency; many are nearly
orthogonal, with sqrt(2) / 2 of the distance that is accounted. Slots are orthogonal to each other,
and all other gradients are 0.

In coordinates of which one belongs to each value, the corner of value v is s (1[j = v] - 1 / k) at
j, with s = sqrt(k / (k - 1)). The adversary sees the sum of all noisy gradients. Its inner products
with the corners differ from s times its coordinates by what is common to all of them, so that
coordinates rank the values in the same way, and their common part is left out.
"""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.adversary_settings import Purpose
from dpcanary.adversaries.drawing import Drawing


def draw_secrets(drawing: Drawing) -> NDArray[np.float32]:
    """The sums of noisy gradients along each value, shape (runs, steps, slots, values).

    Each of the copies of a secret is sampled by itself. The likelihood of a value rises with the
    sum along it, however often its copies were in batches.
    """
    stage, values = drawing.stage, drawing.worlds
    gaps = np.diff(stage.record_steps, prepend=0)
    length = sqrt(stage.num_candidates / (stage.num_candidates - 1))
    shape = (len(gaps), stage.num_slots, stage.num_candidates)
    sums = np.empty((len(values), *shape), np.float32)
    for row, run in enumerate(drawing.runs):
        stream = drawing.generator(run, Purpose.SECRET_NOISE)
        counts = stream.binomial(
            stage.num_copies * gaps[:, None], stage.sample_rate, size=shape[:2]
        )
        noise = stream.standard_normal(shape) * drawing.noise_multiplier
        added = noise * np.sqrt(gaps)[:, None, None]
        own = values[row][None, :, None]
        true = np.take_along_axis(added, own, axis=2) + length * counts[..., None]
        np.put_along_axis(added, own, true, axis=2)
        sums[row] = added.cumsum(axis=0)
    return sums
