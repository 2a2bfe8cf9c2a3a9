"""The scores of an audit, and their file."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays

_ARRAYS = ("step", "scores", "world", "test_accuracy")


@dataclass(frozen=True)
class AuditScores:
    """Scores of all runs of one audit, in the order of the run indices.

    Attributes:
        header: `audit`, `canary`, `score`, `sample_rate`, `noise_multiplier`, and `seconds` that
            all shards took together.
        step: shape (S,), recorded steps, ascending.
        scores: shape (repeats, runs, K, S) for K slots; higher means that world 0 is likelier.
        world: shape (repeats, runs, K), 0 or 1.
        test_accuracy: shape (repeats, runs), in [0, 1]; NaN where no model is trained.
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
    def num_slots(self) -> int:
        """K, slots of a run."""
        return int(self.scores.shape[2])

    def of_worlds(
        self, *, repeat: int, step: int, slots: slice = slice(None)
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The scores of world 0 and of world 1, shape (n0,) and (n1,).

        Args:
            repeat: index of the repeat.
            step: index of the recorded step.
            slots: whose scores; by default of all slots.
        """
        scores, world = self.scores[repeat, :, slots, step], self.world[repeat, :, slots]
        return scores[world == 0], scores[world == 1]

    def at_last_step(self) -> "AuditScores":
        """The scores at the last recorded step alone."""
        return replace(self, step=self.step[-1:], scores=self.scores[..., -1:])

    def of_first_runs(self, num_runs: int) -> "AuditScores":
        """The scores of the first runs of every repeat.

        The runs of a smaller number are among those of a larger one: nothing is drawn or trained.

        Args:
            num_runs: runs of both worlds together.

        Raises:
            InputError: if the number is below 1, more than a repeat has, or odd where half of
                the runs are in each world.
        """
        most = self.scores.shape[1]
        if num_runs < 1 or (self.num_slots == 1 and num_runs % 2):
            known = "half of the runs are of each world: give 2, 4, ..."
            raise InputError(
                f"num_runs {num_runs}: {known if self.num_slots == 1 else 'give at least 1'}"
            )
        if num_runs > most:
            raise InputError(
                f"num_runs {num_runs} is more than the {most} runs of a repeat of audit"
                f" {self.audit}: train more runs or ask for fewer"
            )
        return replace(
            self,
            scores=self.scores[:, :num_runs],
            world=self.world[:, :num_runs],
            test_accuracy=self.test_accuracy[:, :num_runs],
        )


def write_scores(path: Path, scores: AuditScores) -> None:
    """Writes a score file atomically."""
    arrays = {name: getattr(scores, name) for name in _ARRAYS}
    write_arrays(path, header=scores.header, arrays=arrays)


def read_scores(path: Path) -> AuditScores:
    """Reads a score file.

    Raises:
        InputError: if the file is damaged or no score file, or holds a NaN score.
    """
    header, arrays = read_arrays(path)
    if arrays.keys() != {*_ARRAYS} or "audit" not in header:
        raise InputError(f"{path} is no score file; delete it and run again")
    found = AuditScores(header=header, **arrays)
    fits = found.world.ndim == 3 and found.scores.shape == (*found.world.shape, len(found.step))
    if not fits or found.test_accuracy.shape != found.world.shape[:2]:
        raise InputError(f"{path}: its arrays do not fit together; delete it and run again")
    missing = np.argwhere(np.isnan(found.scores))
    if len(missing):
        repeat, run = missing[0][:2]
        raise InputError(
            f"{path}: the score of run {run} of repeat {repeat} is NaN: a run that diverged must be"
            " mended or trained again, never dropped"
        )
    return found
