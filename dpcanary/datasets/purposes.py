"""Purposes of this package's random streams; see `dpcanary.randomness`."""

from enum import IntEnum


class Purpose(IntEnum):
    """Part of every stream's key. Never change a number or reuse it, in any package."""

    RECORDS = 1  # which records of a dataset are private, auxiliary and test records
    SYNTHETIC_RECORDS = 9  # generated data: its model, then its blocks of records
