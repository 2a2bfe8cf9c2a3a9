"""What random streams of this package are for; see `dpcanary.randomness`."""

from enum import IntEnum


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    RECORDS = 1  # which records of a dataset are private, auxiliary and test records
    SYNTHETIC_RECORDS = 9  # made-up data: the model of it, then its blocks of records
