"""Exponential, sigmoid and tanh in float32, which the compiler can vectorise.

Library calls would not vectorise. NaN stays NaN, so that a diverged run is noticed: bounds are
comparisons and not `min` or `max`, which return the bound.
"""

import math

import numba
import numpy as np

from dpcanary.training.kernels.float_bits import as_float

_I, _U, _F = np.int32, np.uint32, np.float32


@numba.njit(inline="always")
def clamped(x, bound):
    """The number nearest to x between -bound and bound; NaN for NaN."""
    x = bound if x > bound else x
    return -bound if x < -bound else x


@numba.njit(inline="always")
def exp(x):
    """Exponential by Cephes' polynomial; beyond -87 and 87, that of the bound."""
    x = clamped(x, _F(87.0))
    n = _F(math.floor(x * _F(1.44269504088896341) + _F(0.5)))
    r = x - n * _F(0.693359375) + n * _F(2.12194440e-4)
    y = _F(1.9875691500e-4)
    y = y * r + _F(1.3981999507e-3)
    y = y * r + _F(8.3334519073e-3)
    y = y * r + _F(4.1665795894e-2)
    y = y * r + _F(1.6666665459e-1)
    y = y * r + _F(5.0000001201e-1)
    return (y * r * r + r + _F(1.0)) * as_float(_U((_I(n) + _I(127)) << _I(23)))


@numba.njit(inline="always")
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return _F(1.0) / (_F(1.0) + exp(-x))


@numba.njit(inline="always")
def tanh(x):
    """Hyperbolic tangent: Cephes' polynomial near 0, else 1 - 2 / (exp(2 x) + 1)."""
    size = abs(x)
    s = x * x
    y = _F(-5.70498872745e-3)
    y = y * s + _F(2.06390887954e-2)
    y = y * s + _F(-5.37397155531e-2)
    y = y * s + _F(1.33314422036e-1)
    y = y * s + _F(-3.33332819422e-1)
    near = y * s * x + x
    far = _F(1.0) - _F(2.0) / (exp(_F(2.0) * size) + _F(1.0))
    signed = far if x > _F(0.0) else -far
    return near if size < _F(0.625) else signed
