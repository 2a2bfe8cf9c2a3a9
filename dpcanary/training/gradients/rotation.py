"""Linear heads trained in the span of their records.

Gradients of a linear head lie in the span of the records' features, and the noise is isotropic: in
an orthonormal basis whose first vectors span the records, the coordinates along the others get
noise alone, which no logit of a training record sees. With fewer records than features, training
in the span alone (n coordinates a class in place of the width) leaves the distribution of all that
the audit observes as it was, and so does adding the missing noise once, at the end, where whole
parameters are asked for. It holds for plain descent and momentum, which commute with rotations,
and not for Adam, which scales each coordinate.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Share of a vector's length outside of the others' span below which it is rounding.
_DEPENDENT = 1e-6


def spanning_basis(vectors: Tensor) -> Tensor | None:
    """Orthonormal columns that span the vectors, or None where that saves nothing.

    Args:
        vectors: shape (n, width).

    Returns:
        Shape (width, rank), or None unless n < width.
    """
    num_vectors, width = vectors.shape
    if num_vectors >= width:
        return None
    # In double precision: the basis must be orthonormal to more than single precision.
    columns = vectors.double().T
    # A column that depends on those before would add a direction made of rounding alone, and so
    # another one on every machine.
    own = torch.linalg.qr(columns, mode="r").R.diagonal().abs()
    columns = columns[:, own > _DEPENDENT * torch.linalg.vector_norm(columns, dim=0)]
    basis: Tensor = torch.linalg.qr(columns, mode="reduced").Q
    return basis.float()


def accumulated_noise(rates: Sequence[float], *, momentum: float) -> float:
    """Standard deviation of a coordinate that sees only unit noise at every step.

    Descent with momentum m adds sum_t rate_t v_t with v_t = m v_{t-1} + z_t, so the draw z_s moves
    the coordinate by sum_{t >= s} rate_t m^(t-s).

    Args:
        rates: what each step multiplies its velocity with.
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
