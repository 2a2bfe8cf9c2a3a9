"""Purposes of this package's random streams; see `dpcanary.randomness`."""

from enum import IntEnum


class Purpose(IntEnum):
    """Part of every stream's key. Never change a number or reuse it, in any package."""

    METAGRADIENT_SPLITS = 18  # which canaries a metastep trains on
    METAGRADIENT_ORDERS = 19  # the order of records in each epoch of a metastep
