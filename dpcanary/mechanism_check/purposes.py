"""What random streams of this package are for; see `dpcanary.randomness`."""

from enum import IntEnum


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    MECHANISM_CHECK = 23  # the seeds of trainings on probes
    BATCH_SIZES = 24  # drawn no more: the law of batch sizes is computed; the number stays taken
