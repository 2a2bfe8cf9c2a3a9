"""The scores of an audit, and their file."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.core.files import read_arrays, write_arrays
from dpcanary.errors import InputError

# The score that keeps the norms of canaries' gradients.
GRADIENT_NORM = "gradient_norm"
# Columns of how well models predict test records.
MEASURES = ("test_accuracy", "baseline_accuracy", "test_r2")


@dataclass(frozen=True)
class AuditScores:
    """Scores of all runs of one audit, in the order of the run indices.

    Attributes:
        header: `audit`, `canary`, `score`, `sample_rate`, `noise_multiplier`, `batch_size` (None
            unless batches are known), the `seconds` that all shards together took, `measure`
            (`accuracy` or `r2`), `baseline`, that of the best constant prediction (None if it is
            not known), and the `num_candidates` of slots that hold secrets.
        step: shape (S,), recorded steps, ascending.
        scores: shape (repeats, runs, K, S) for K slots; higher means that world 0 is likelier. Of
            secrets, the ranks of the true values, from 1 for the likeliest.
        world: shape (repeats, runs, K), 0 or 1. Of secrets, the index of the true value.
        test_accuracy: shape (repeats, runs), the measure; NaN where no model is trained.
    """

    header: dict[str, Any]
    step: NDArray[np.int64]
    scores: NDArray[np.float64]
    world: NDArray[np.uint8]
    test_accuracy: NDArray[np.float32]

    @property
    def audit(self) -> str:
        """The name of the audit."""
        return str(self.header["audit"])

    @property
    def num_runs(self) -> int:
        """Runs of a repeat, of both worlds together."""
        return int(self.scores.shape[1])

    @property
    def num_slots(self) -> int:
        """K, slots of a run."""
        return int(self.scores.shape[2])

    @property
    def num_candidates(self) -> int | None:
        """Values of each slot, where slots hold secrets; otherwise None."""
        return self.header.get("num_candidates")

    def of_worlds(
        self, *, repeat: int, step: int, slots: slice = slice(None)
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The scores of some slots in world 0 and in world 1, shape (n0,) and (n1,), by indices."""
        scores, world = self.scores[repeat, :, slots, step], self.world[repeat, :, slots]
        return scores[world == 0], scores[world == 1]

    def at_last_step(self) -> "AuditScores":
        """The scores at the last recorded step."""
        return replace(self, step=self.step[-1:], scores=self.scores[..., -1:])

    def of_first_runs(self, num_runs: int) -> "AuditScores":
        """The scores of the first `num_runs` runs of every repeat, of both worlds together.

        Raises:
            InputError: if the number is below 1, more than a repeat has, or odd where half of
                the runs are in each world.
        """
        halved = self.num_slots == 1 and not self.num_candidates
        if halved and (num_runs < 1 or num_runs % 2):
            raise InputError(
                f"num_runs {num_runs}: half of the runs are of each world: give 2, 4, ..."
            )
        if num_runs < 1:
            raise InputError(f"num_runs {num_runs}: give at least 1")
        if num_runs > self.num_runs:
            raise InputError(
                f"num_runs {num_runs} is more than the {self.num_runs} runs of a repeat of audit"
                f" {self.audit}: train more runs or ask for fewer"
            )
        arrays = ("scores", "world", "test_accuracy")
        return replace(self, **{name: getattr(self, name)[:, :num_runs] for name in arrays})


def write_scores(path: Path, scores: AuditScores, *, origin: str = "") -> None:
    """Writes a score file atomically; `origin` as in `files.write_arrays`."""
    arrays = vars(scores).copy()
    write_arrays(path, header=arrays.pop("header"), arrays=arrays, origin=origin)


def read_scores(path: Path) -> AuditScores:
    """Reads a score file.

    Raises:
        InputError: if the file is damaged or no score file, or a score is NaN.
    """
    header, arrays = read_arrays(path)
    if {"header", *arrays} != AuditScores.__annotations__.keys() or "audit" not in header:
        raise InputError(f"{path} is no score file; delete it and run again")
    scores = AuditScores(header=header, **arrays)
    fits = scores.world.ndim == 3 and scores.scores.shape == (*scores.world.shape, len(scores.step))
    if not fits or scores.test_accuracy.shape != scores.world.shape[:2]:
        raise InputError(f"{path}: its arrays do not fit together; delete it and run again")
    missing = np.argwhere(np.isnan(scores.scores))
    if len(missing):
        repeat, run = missing[0][:2]
        raise InputError(
            f"{path}: the score of run {run} of repeat {repeat} is NaN: if the run diverged,"
            " mend it or train it again, but never drop it"
        )
    return scores
