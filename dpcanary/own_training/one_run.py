"""One training of the user's own, with a seed of its own."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from dpcanary.accounting.of_opacus import (
    accounted_steps,
    noted_sampling,
    noted_sampling_of,
    samples_poisson,
)
from dpcanary.errors import InputError
from dpcanary.global_generators import seed_global_generators
from dpcanary.randomness import generator


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    OWN_TRAINING = 22  # the seed of one training of the user's own


# Takes a seed and a world. Gives a score, or a score and Opacus's privacy engine.
Train = Callable[[int, int], Any]


@dataclass(frozen=True)
class OwnRun:
    """What is kept of a run.

    Attributes:
        run: its index; even ones are in world 0, odd ones in world 1.
        score: higher means that world 0 is likelier.
        seconds: that it took.
        noise_multiplier: as Opacus has accounted it; None if the training did not return its
            privacy engine.
        sample_rate: likewise.
        num_steps: likewise.
        poisson_sampling: whether Opacus was told to draw Poisson samples; None if not known.
    """

    run: int
    score: float
    seconds: float
    noise_multiplier: float | None = None
    sample_rate: float | None = None
    num_steps: int | None = None
    poisson_sampling: bool | None = None

    @property
    def world(self) -> int:
        """0 or 1."""
        return self.run % 2

    @property
    def mechanism(self) -> tuple[float | None, float | None, int | None]:
        """What Opacus has accounted: noise multiplier, sample rate and number of steps."""
        return self.noise_multiplier, self.sample_rate, self.num_steps


def train_one(train: Train, *, run: int, seed: int) -> OwnRun:
    """Trains one model, whose index fixes its world and its randomness.

    The generators of Python, NumPy and PyTorch are seeded for this run before, so that a training
    that draws from them, as Opacus does for its noise, differs from run to run.

    Raises:
        InputError: if the function fails, or returns no score.
    """
    world = run % 2
    run_seed = int(generator(seed=seed, purpose=Purpose.OWN_TRAINING, index=run).integers(2**63))
    seed_global_generators(run_seed)
    was_imported = "opacus" in sys.modules
    start = time.perf_counter()
    try:
        with noted_sampling():
            returned = train(run_seed % 2**31, world)
    except Exception as error:
        raise InputError(
            f"run {run} (world {world}) failed: {type(error).__name__}: {error}"
        ) from error
    seconds = time.perf_counter() - start
    score, engine = returned, None
    if isinstance(returned, tuple) and len(returned) == 2:
        score, engine = returned
    known = accounted_steps(engine) if engine is not None else (None, None, None)
    sampling = noted_sampling_of(engine)
    if sampling is None and engine is not None and not was_imported:
        sampling = samples_poisson(engine)  # the training has imported Opacus just now
    return OwnRun(run, _checked_score(score, run), seconds, *known, poisson_sampling=sampling)


def _checked_score(score: Any, run: int) -> float:
    try:
        found = float(score)
    except (TypeError, ValueError):
        raise InputError(
            f"run {run}: the training returned {score!r:.60}; it must return a score, or a score"
            " and Opacus's privacy engine"
        ) from None
    if np.isnan(found):
        raise InputError(f"run {run}: the score is NaN; has the training diverged?")
    return found
