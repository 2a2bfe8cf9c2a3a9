"""Runs of processes that train no model: what a function that draws them is given."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.drawing_stage import DrawingStage
from dpcanary.adversaries.purposes import Purpose
from dpcanary.errors import InputError
from dpcanary.observations import Shard, shard_header
from dpcanary.plugins import function_named
from dpcanary.randomness import generator
from dpcanary.worlds import parity


@dataclass(frozen=True)
class Drawing:
    """Some runs of a process that are to be drawn.

    Attributes:
        stage: what the runs are told.
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

    def generator(self, run: int) -> np.random.Generator:
        """The random stream of one run, by its index alone."""
        return generator(seed=self.stage.seed, purpose=Purpose.PROCESS, index=run)


def draw_shard(drawing: Drawing) -> Shard:
    """Draws some runs of a process.

    Raises:
        InputError: if its function does not exist, or returns another shape.
    """
    start = time.perf_counter()
    observation = draw_runs(drawing)
    header = shard_header(
        settings=drawing.stage.model_dump(mode="json"),
        noise_multiplier=drawing.noise_multiplier,
        inputs={},
        device="cpu",
        seconds=time.perf_counter() - start,
    )
    return Shard(
        header=header,
        run=np.array(drawing.runs),
        world=drawing.worlds[:, None].astype(np.uint8),
        step=np.array(drawing.stage.record_steps),
        observation=observation,
        test_accuracy=np.full(len(drawing.runs), np.nan, dtype=np.float32),
    )


def draw_runs(drawing: Drawing) -> NDArray[np.float64]:
    """Draws the observations of some runs of a process.

    Returns:
        Shape (runs, steps, 1, ...): a process has one slot.

    Raises:
        InputError: if the function does not exist, or returns another shape.
    """
    drawn = np.asarray(function_named(drawing.stage.function)(drawing))
    wanted = (len(drawing.runs), len(drawing.stage.record_steps))
    if drawn.shape[:2] != wanted:
        raise InputError(
            f"{drawing.stage.function} returned shape {drawn.shape}; it must begin with {wanted},"
            " for runs and recorded steps"
        )
    return drawn[:, :, None]
