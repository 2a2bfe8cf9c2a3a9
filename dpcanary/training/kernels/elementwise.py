"""Exponential, sigmoid and tanh in float32, which the compiler can vectorise.

Library calls would not vectorise. NaN stays NaN, so that a diverged run is noticed: bounds are
comparisons and not `min` or `max`, which return the bound.
"""

import numba
import numpy as np

from dpcanary.training.kernels.float_bits import as_float

_I, _U, _F = np.int32, np.uint32, np.float32

# Sums are not reordered here: near 0 that would lose all digits of tanh.
_accurate = numba.njit(fastmath={"contract", "nsz"}, error_model="numpy")


@_accurate
def clamped(x, bound):
    """The number nearest to x between -bound and bound; NaN for NaN."""
    x = bound if x > bound else x
    return -bound if x < -bound else x


@_accurate
def exp_parts(x):
    """The power of two and the rest q with exp(x) = power * (1 + q), by Cephes' polynomial."""
    x = clamped(x, _F(87.0))
    n = np.floor(x * _F(1.44269504088896341) + _F(0.5))
    r = x - n * _F(0.693359375) + n * _F(2.12194440e-4)
    y = _F(1.9875691500e-4)
    y = y * r + _F(1.3981999507e-3)
    y = y * r + _F(8.3334519073e-3)
    y = y * r + _F(4.1665795894e-2)
    y = y * r + _F(1.6666665459e-1)
    y = y * r + _F(5.0000001201e-1)
    return as_float(_U((_I(n) + _I(127)) << _I(23))), y * (r * r) + r


@_accurate
def exp(x):
    """Exponential; beyond -87 and 87, that of the bound."""
    power, q = exp_parts(x)
    return power * q + power


@_accurate
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return _F(1.0) / (_F(1.0) + exp(-x))


@_accurate
def tanh(x):
    """Hyperbolic tangent, (exp(2 x) - 1) / (exp(2 x) + 1), without cancellation near 0."""
    power, q = exp_parts(x + x)
    e = power * q + (power - _F(1.0))
    return e / (e + _F(2.0))
