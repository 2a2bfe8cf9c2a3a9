"""Purposes of this package's random streams; see `dpcanary.randomness`."""

from enum import IntEnum


class Purpose(IntEnum):
    """Part of the key of every stream. Never change or reuse a number, in any package."""

    WORST_CASE = 5  # direct draws of the worst-case audit
    PROCESS = 11  # direct draws of a process of another package
    TARGETS = 12  # target records where no reference model chooses them
    DIMENSIONS = 13  # coordinates of gradient canaries that are drawn at random
    DIRECTIONS = 14  # directions of gradient canaries
    OTHER_LABELS = 16  # labels of canaries
    LOSS_LANDSCAPE = 15  # direct draws of a process in a crafted loss landscape
