"""The world of a run with one slot."""

import numpy as np
from numpy.typing import NDArray


def parity(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """World of each run: 0 for even run indices, 1 for odd ones.

    Runs alternate, so that every even number of consecutive runs is balanced.

    Example:
        >>> parity(np.arange(4)).tolist()
        [0, 1, 0, 1]
    """
    return runs % 2
