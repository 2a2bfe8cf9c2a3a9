"""Random streams keyed by (seed, purpose, run index), so that no shard, core or order matters."""

import hashlib
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """What a stream is for; streams of different purposes are independent.

    The numbers are part of every stream's key: never reuse or change one.
    """

    RECORDS = 1  # which records of a dataset are private, auxiliary and test records
    BATCHES = 2  # Poisson sampling of a run
    NOISE = 3  # DP-SGD noise of a run
    SIMULATION = 4  # Poisson sampling of the noiseless simulated training
    WORST_CASE = 5  # direct draws of the worst-case audit
    INITIALISATION = 6  # random parameters of a run, or of all
    FIXED_BATCHES = 7  # the order of records in each epoch of known batches
    OUT_OF_SPAN = 8  # a run's noise outside of the span of its records
    SYNTHETIC_RECORDS = 9  # made-up data: the model of it, then its blocks of records
    WORLDS = 10  # the world of each slot of a run


def derived_seed(*, seed: int, name: str) -> int:
    """A seed of its own for something that has a name, such as an audit.

    Audits of one experiment would otherwise share their noise run by run, and an unlucky draw
    would show in all of them at once.

    Example:
        >>> derived_seed(seed=0, name="one") != derived_seed(seed=0, name="two")
        True
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def philox_key(*, seed: int) -> NDArray[np.uint32]:
    """The key of an audit's counter-based draws, shape (2,); see `training.kernels.philox`."""
    return np.random.SeedSequence(entropy=seed).generate_state(2, np.uint32).astype(np.uint32)


def generator(*, seed: int, purpose: Purpose, index: int = 0) -> np.random.Generator:
    """The stream of one purpose and run.

    NumPy expands the key into the whole state of the generator; seeding PyTorch's CPU generator
    would keep 32 bits of it, and among thousands of runs two would then share their noise.

    Args:
        seed: the audit's seed, >= 0.
        purpose: what the stream is for.
        index: the run index (or the index of a block of runs), >= 0.

    Example:
        >>> one = generator(seed=0, purpose=Purpose.NOISE, index=7)
        >>> two = generator(seed=0, purpose=Purpose.NOISE, index=7)
        >>> bool(one.random() == two.random())
        True
    """
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(purpose.value, index))
    return np.random.Generator(np.random.SFC64(sequence))
