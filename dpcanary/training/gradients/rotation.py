"""Linear heads trained in the span of their records.

Gradients of a linear head lie in the span of the records' features, and the noise is isotropic.
Take an orthonormal basis whose first vectors span the records: the coordinates along the other
vectors get noise alone, and no logit of a training record depends on them. With fewer records than
features, it therefore suffices to train in the span (n coordinates per class instead of the width),
and to add the missing noise once at the end where whole parameters are needed. The distribution of
everything that the audit observes stays the same. This holds for plain descent and momentum, which
commute with rotations, but not for Adam, which scales each coordinate.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# A vector counts as dependent if less than this share of its length lies outside the others' span.
_DEPENDENT = 1e-6


def spanning_basis(vectors: Tensor) -> Tensor | None:
    """Orthonormal columns that span the vectors, or None if they would save no work.

    Args:
        vectors: shape (n, width).

    Returns:
        Shape (width, rank), or None unless n < width.
    """
    num_vectors, width = vectors.shape
    if num_vectors >= width:
        return None
    columns = vectors.double().T  # the basis must be orthonormal beyond single precision
    # A column that depends on those before it would add a direction that rounding alone
    # determines, which would differ between machines.
    own = torch.linalg.qr(columns, mode="r").R.diagonal().abs()
    columns = columns[:, own > _DEPENDENT * torch.linalg.vector_norm(columns, dim=0)]
    basis: Tensor = torch.linalg.qr(columns, mode="reduced").Q
    return basis.float()


def accumulated_noise(rates: Sequence[float], *, momentum: float) -> float:
    """Standard deviation of a coordinate that gets noise alone at every step.

    Descent with momentum m adds sum_t rate_t v_t with v_t = m v_{t-1} + z_t, so the draw z_s moves
    the coordinate by sum_{t >= s} rate_t m^(t-s).

    Args:
        rates: of each step, its learning rate times the standard deviation of its noise.
        momentum: m; 0 for plain descent.

    Example:
        >>> accumulated_noise([0.5] * 4, momentum=0.0)
        1.0
    """
    weight, variance = 0.0, 0.0
    for rate in reversed(rates):
        weight = rate + momentum * weight
        variance += weight**2
    return math.sqrt(variance)
