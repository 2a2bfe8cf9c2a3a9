"""The randomness of a block of runs, drawn ahead for several steps at once."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcanary.randomness import Purpose, generator

_RARE = 1e-3


@dataclass(frozen=True)
class Draws:
    """Batches and noise of the next steps.

    Attributes:
        sampled: shape (runs, steps, records), True where a record is in the batch.
        noise: shape (runs, steps, parameters), standard normal.
    """

    sampled: NDArray[np.bool_]
    noise: NDArray[np.float32]


class RunStreams:
    """Streams of a block of runs, one per run and purpose.

    What a run draws depends on the seed and its index alone: not on the runs beside it, nor on
    how many steps are drawn at once.
    """

    def __init__(
        self, *, seed: int, runs: Sequence[int], sample_rate: float, num_records: int, width: int
    ) -> None:
        """Opens the streams.

        Args:
            seed: the audit's seed.
            runs: run indices.
            sample_rate: probability that a record is in a step's batch.
            num_records: records that are sampled.
            width: parameters, each of which gets noise.
        """
        self._batches = [generator(seed=seed, purpose=Purpose.BATCHES, index=i) for i in runs]
        self._noise = [generator(seed=seed, purpose=Purpose.NOISE, index=i) for i in runs]
        self._sample_rate = sample_rate
        # Single precision has 2^-24 between uniforms: too coarse for rare sampling.
        self._uniform = np.float32 if sample_rate >= _RARE else np.float64
        self._num_records = num_records
        self._width = width

    def draw(self, num_steps: int, pool: Executor) -> Draws:
        """The next steps of every run; the runs are shared among the pool's threads."""
        runs = len(self._noise)
        sampled = np.ones((runs, num_steps, self._num_records), np.bool_)
        noise = np.empty((runs, num_steps, self._width), np.float32)

        def fill(run: int) -> None:
            self._noise[run].standard_normal(out=noise[run], dtype=np.float32)
            if self._sample_rate < 1.0:
                uniform = self._batches[run].random(sampled[run].shape, self._uniform)
                np.less(uniform, self._uniform(self._sample_rate), out=sampled[run])

        list(pool.map(fill, range(runs)))
        return Draws(sampled=sampled, noise=noise)
