"""Runs that are drawn from a process, without a model."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.adversary_settings import DrawingStage, Purpose
from dpcanary.core.plugins import function_named
from dpcanary.core.randomness import generator
from dpcanary.data.observations import Shard, parity, shard_header
from dpcanary.errors import InputError

# Runs that share a stream. A run's draws are its row there, so its index alone fixes them.
RUNS_PER_STREAM = 1024


@dataclass(frozen=True)
class Drawing:
    """Runs of a process that a function shall draw.

    Attributes:
        stage: settings.
        noise_multiplier: sigma.
        runs: run indices, step 1; they fix each run's world and randomness.
    """

    stage: DrawingStage
    noise_multiplier: float
    runs: range

    @property
    def worlds(self) -> NDArray[np.int64]:
        """World of each run, shape (runs,)."""
        return parity(np.array(self.runs))

    def streams(
        self, purpose: int
    ) -> Iterator[tuple[np.random.Generator, slice, NDArray[np.int64]]]:
        """Each stream that the runs touch, with the rows of its runs, and their worlds.

        A stream serves `RUNS_PER_STREAM` runs at once. Draw for all of them, and keep the rows.
        """
        runs, size = self.runs, RUNS_PER_STREAM
        for index in range(runs.start // size, (runs.stop - 1) // size + 1):
            start = index * size
            first, end = max(runs.start, start), min(runs.stop, start + size)
            stream = generator(seed=self.stage.seed, purpose=purpose, index=index)
            yield stream, slice(first - start, end - start), parity(np.arange(first, end))

    def generator(self, run: int) -> np.random.Generator:
        """The random stream of one run, which depends on its index alone."""
        return generator(seed=self.stage.seed, purpose=Purpose.PROCESS, index=run)


def draw_shard(drawing: Drawing) -> Shard:
    """Draws runs of a process.

    Returns:
        A shard with one slot; its observations have shape (runs, steps, 1, ...).

    Raises:
        InputError: if the drawing function does not exist, or returns another shape.
    """
    stage, runs = drawing.stage, np.array(drawing.runs)
    draw = function_named(stage.function)  # an import, which is not counted
    start = time.perf_counter()
    drawn = np.asarray(draw(drawing))
    wanted = (len(runs), len(stage.record_steps))
    if drawn.shape[:2] != wanted:
        raise InputError(
            f"{stage.function} returned shape {drawn.shape}; it must begin with {wanted},"
            " for runs and recorded steps"
        )
    header = shard_header(
        settings=stage.model_dump(mode="json"),
        noise_multiplier=drawing.noise_multiplier,
        inputs={},
        device="cpu",
        seconds=time.perf_counter() - start,
        packages=["numpy"],
    )
    return Shard(
        header=header,
        run=runs,
        world=drawing.worlds[:, None].astype(np.uint8),
        step=np.array(stage.record_steps),
        observation=drawn[:, :, None],
        test_accuracy=np.full(len(runs), np.nan, dtype=np.float32),
    )
