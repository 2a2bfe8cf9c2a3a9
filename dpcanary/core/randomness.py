"""Random streams that depend on seed, purpose and run index only, not on shards or cores."""

import hashlib

import numpy as np
from numpy.typing import NDArray


def derived_seed(*, seed: int, name: str) -> int:
    """A seed for something that has a name, such as an audit.

    With the same seed, the audits of an experiment would share their noise run by run, and an
    unlucky draw would affect all of them at once.

    Example:
        >>> derived_seed(seed=0, name="one") != derived_seed(seed=0, name="two")
        True
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def philox_key(*, seed: int) -> NDArray[np.uint32]:
    """The key of an audit's counter-based draws, shape (2,); see `training.kernels.philox`."""
    return np.random.SeedSequence(entropy=seed).generate_state(2, np.uint32).astype(np.uint32)


def generator(*, seed: int, purpose: int, index: int = 0) -> np.random.Generator:
    """The stream of one purpose and run.

    NumPy uses the whole key. PyTorch's CPU generator would keep 32 bits of a seed, and among
    thousands of runs two would then share their noise.

    Args:
        seed: the audit's seed, >= 0.
        purpose: a `Purpose` of the package that draws; streams of different purposes are
            independent.
        index: of the run or of a block of runs, >= 0.

    Example:
        >>> first = generator(seed=0, purpose=3, index=7)
        >>> again = generator(seed=0, purpose=3, index=7)
        >>> bool(first.random() == again.random())
        True
    """
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(int(purpose), index))
    return np.random.Generator(np.random.SFC64(sequence))
