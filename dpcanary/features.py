"""Feature matrices as the linear models see them."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Float = TypeVar("Float", bound=np.floating)


def with_bias(features: NDArray[Float]) -> NDArray[Float]:
    """Appends the constant feature 1, which carries the bias.

    Args:
        features: shape (records, features).

    Returns:
        Shape (records, features + 1), of the same type.

    Example:
        >>> with_bias(np.array([[2.0, 3.0]]))
        array([[2., 3., 1.]])
    """
    return np.column_stack([features, np.ones(len(features), features.dtype)])
