"""What random streams of this package are for; see `dpcanary.randomness`."""

from enum import IntEnum


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    BATCHES = 2  # Poisson sampling of a run
    NOISE = 3  # DP-SGD noise of a run
    SIMULATION = 4  # Poisson sampling of simulated trainings
    INITIALISATION = 6  # random parameters of a run, or of all
    FIXED_BATCHES = 7  # the order of records in each epoch of known batches
    OUT_OF_SPAN = 8  # a run's noise outside the span of its records
    WORLDS = 10  # the world of each slot of a run
    SIMULATED_NOISE = 17  # DP-SGD noise of a simulated training
    VIEWS = 20  # flips and shifts of a run's images
    PRETRAINING_BATCHES = 21  # the order of public records in each epoch of pretraining
