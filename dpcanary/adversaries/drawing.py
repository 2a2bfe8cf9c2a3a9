"""Runs that are drawn from a process, without a model."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.adversary_settings import DrawingStage, Purpose
from dpcanary.core.plugins import function_named
from dpcanary.core.randomness import generator
from dpcanary.data.observations import Shard, drawn_values, parity, shard_header
from dpcanary.errors import InputError
from dpcanary.training.training_settings import WorldAssignment

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
        """World of each slot of each run, shape (runs, slots); of secrets, their true values."""
        stage = self.stage
        if stage.worlds is not WorldAssignment.CANDIDATES:
            return parity(np.array(self.runs))[:, None]
        return drawn_values(
            self.runs,
            seed=stage.seed,
            purpose=Purpose.SECRET_VALUES,
            num_slots=stage.num_slots,
            num_candidates=stage.num_candidates,
        )

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

    def generator(self, run: int, purpose: int = Purpose.PROCESS) -> np.random.Generator:
        """The random stream of one run, which depends on its index alone."""
        return generator(seed=self.stage.seed, purpose=purpose, index=run)


def draw_shard(drawing: Drawing) -> Shard:
    """Draws runs of a process.

    Returns:
        A shard; its observations have shape (runs, steps, slots, ...).

    Raises:
        InputError: if the drawing function does not exist, or returns another shape.
    """
    stage, runs = drawing.stage, np.array(drawing.runs)
    draw = function_named(stage.function)  # an import, which is not counted
    start = time.perf_counter()
    drawn = np.asarray(draw(drawing))
    of_secrets = stage.worlds is WorldAssignment.CANDIDATES
    expected = (len(runs), len(stage.record_steps), *[stage.num_slots] * of_secrets)
    if drawn.shape[: len(expected)] != expected:
        raise InputError(
            f"{stage.function} returned shape {drawn.shape}; it must begin with {expected},"
            f" for runs, recorded steps{' and slots' * of_secrets}"
        )
    header = shard_header(
        settings=stage.model_dump(mode="json"),
        noise_multiplier=drawing.noise_multiplier,
        inputs={},
        device="cpu",
        seconds=time.perf_counter() - start,
        packages=["numpy"],
        num_candidates=stage.num_candidates if of_secrets else None,
    )
    return Shard(
        header=header,
        run=runs,
        world=drawing.worlds.astype(np.uint32 if of_secrets else np.uint8),
        step=np.array(stage.record_steps),
        observation=drawn if of_secrets else drawn[:, :, None],  # the only slot
        test_accuracy=np.full(len(runs), np.nan, dtype=np.float32),
    )
