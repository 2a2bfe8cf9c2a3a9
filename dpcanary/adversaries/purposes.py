"""What random streams of this package are for; see `dpcanary.randomness`."""

from enum import IntEnum


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    WORST_CASE = 5  # direct draws of the worst-case audit
    PROCESS = 11  # direct draws of a process of another package
