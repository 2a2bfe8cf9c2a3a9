"""The worlds of runs with one slot."""

import numpy as np
from numpy.typing import NDArray


def parity(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """World of each run: 0 for even run indices, 1 for odd ones.

    Every even number of consecutive runs therefore has half of its runs in each world.

    Example:
        >>> parity(np.arange(4)).tolist()
        [0, 1, 0, 1]
    """
    return runs % 2
