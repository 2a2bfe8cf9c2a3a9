"""Clopper-Pearson upper confidence bounds on an error rate."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv


@lru_cache(maxsize=64)
def clopper_pearson_upper_table(*, num_trials: int, level: float) -> NDArray[np.float64]:
    """Upper bounds for every possible count of errors.

    Args:
        num_trials: number of independent trials, n.
        level: probability with which each single bound may fail, in (0, 1).

    Returns:
        Shape (n + 1,), read-only: entry k bounds the error rate after k errors. Entry n is 1.

    Example:
        >>> table = clopper_pearson_upper_table(num_trials=100, level=0.025)
        >>> [round(float(table[k]), 4) for k in (0, 10, 100)]
        [0.0362, 0.1762, 1.0]
    """
    errors = np.arange(num_trials)
    table = np.append(betainccinv(errors + 1.0, num_trials - errors, level), 1.0)
    table.flags.writeable = False
    return table
