"""S2: the gradient canary (Pradhan et al., Algorithm 2; after Cebere et al., A_GC-S)."""

import numpy as np
from numpy.typing import NDArray

from dpcanary.canaries import GradientCanary


def least_updated_coordinate(accumulated_updates: NDArray[np.float64]) -> GradientCanary:
    """The coordinate that moves least in a simulated training: there the canary stands out most.

    Args:
        accumulated_updates: shape (parameters,); absolute updates summed over the steps.

    Example:
        >>> least_updated_coordinate(np.array([0.5, 0.1, 0.3]))
        GradientCanary(coordinate=1)
    """
    return GradientCanary(coordinate=int(np.argmin(accumulated_updates)))
