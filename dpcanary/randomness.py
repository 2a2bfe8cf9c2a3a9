"""Random streams keyed by (seed, purpose, run index), so that no shard, core or order matters."""

import hashlib

import numpy as np
from numpy.typing import NDArray


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


def generator(*, seed: int, purpose: int, index: int = 0) -> np.random.Generator:
    """The stream of one purpose and run.

    NumPy expands the key into the whole state of the generator; seeding PyTorch's CPU generator
    would keep 32 bits of it, and among thousands of runs two would then share their noise.

    Args:
        seed: the audit's seed, >= 0.
        purpose: what the stream is for, a `Purpose` of the package that draws: streams of
            different purposes are independent.
        index: the run index (or the index of a block of runs), >= 0.

    Example:
        >>> one = generator(seed=0, purpose=3, index=7)
        >>> two = generator(seed=0, purpose=3, index=7)
        >>> bool(one.random() == two.random())
        True
    """
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(int(purpose), index))
    return np.random.Generator(np.random.SFC64(sequence))
