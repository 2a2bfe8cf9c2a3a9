"""Matrix products at a chosen precision."""

import torch
from torch import Tensor

from dpcanary.training.options import Precision


def product(left: Tensor, right: Tensor, precision: Precision, out: Tensor | None = None) -> Tensor:
    """Matrix product in float32, or with inputs and result rounded to bfloat16.

    Args:
        left: float32, shape (..., n, k).
        right: float32, shape (..., k, m).
        precision: of the product.
        out: float32, shape (..., n, m), overwritten if given.
    """
    if precision is Precision.FLOAT32:
        return torch.matmul(left, right, out=out)
    rounded = torch.matmul(left.bfloat16(), right.bfloat16())
    return rounded.float() if out is None else out.copy_(rounded)
