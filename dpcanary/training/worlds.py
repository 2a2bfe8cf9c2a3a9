"""The world of every slot of every run."""

from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.randomness import philox_key
from dpcanary.training.kernels.philox import random_words
from dpcanary.training.options import WorldAssignment
from dpcanary.training.purposes import Purpose
from dpcanary.worlds import parity


def assigned_worlds(
    assignment: WorldAssignment, *, runs: NDArray[np.int64], num_slots: int, seed: int
) -> NDArray[np.int64]:
    """The world (0 or 1) of each slot of some runs, a function of seed, run and slot.

    Args:
        assignment: how worlds are assigned; see `check_assignment`.
        runs: run indices, shape (runs,).
        num_slots: K.
        seed: the audit's seed.

    Returns:
        Shape (runs, K).
    """
    if assignment is WorldAssignment.ALTERNATE:
        return parity(runs)[:, None]
    words = np.empty((len(runs), num_slots), np.uint32)
    random_words(words, philox_key(seed=seed), 0, runs, Purpose.WORLDS.value)
    match assignment:
        case WorldAssignment.COINS:
            return (words >> np.uint32(31)).astype(np.int64)
        case WorldAssignment.HALVES:
            ranks = np.argsort(np.argsort(words, axis=1, kind="stable"), axis=1)
            return (ranks >= num_slots // 2).astype(np.int64)
        case never:
            assert_never(never)


def check_assignment(assignment: WorldAssignment, num_slots: int) -> None:
    """Refuses an assignment that is not defined for the number of slots.

    Raises:
        InputError: if several slots alternate, or an odd number of slots is to be halved.
    """
    if assignment is WorldAssignment.ALTERNATE and num_slots > 1:
        raise InputError(
            f"worlds alternate is for one slot, and there are {num_slots}: all slots of a run would"
            " be in the same world; use coins or halves"
        )
    if assignment is WorldAssignment.HALVES and num_slots % 2:
        raise InputError(f"worlds halves needs an even number of slots; there are {num_slots}")
