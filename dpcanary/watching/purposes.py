"""Purposes of the random streams of a watched training."""

from enum import IntEnum


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    DIRECTIONS = 34  # supports and signs of the canaries
    WORLDS = 35  # the canaries' secret worlds
    CANARY_BATCHES = 36  # the steps in which each canary takes part, by blocks of steps
