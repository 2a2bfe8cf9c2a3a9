"""Clipped gradient sums of linear heads on the host, each run on the records of its own batch.

A run's weights (tens of KB) stay in the core's first cache while its batch is read once, four
records at a time, for logits, residuals, norms and sums. The time is then proportional to the batch
and not to the dataset. Two classes by four records keep eight sums in registers.
"""

import math

import numba
import numpy as np

from dpcanary.training.kernels.lanes import as_float

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


_TOGETHER = 4  # records at a time


@numba.njit(fastmath=True, error_model="numpy")
def _logits(weights, x0, x1, x2, x3, out):
    """Logits of four records, out (4, classes)."""
    classes, width = weights.shape
    for c in range(0, classes - 1, 2):
        u, v = weights[c], weights[c + 1]
        a0, a1, a2, a3 = _F(0), _F(0), _F(0), _F(0)
        b0, b1, b2, b3 = _F(0), _F(0), _F(0), _F(0)
        for k in range(width):
            a0 += u[k] * x0[k]
            a1 += u[k] * x1[k]
            a2 += u[k] * x2[k]
            a3 += u[k] * x3[k]
            b0 += v[k] * x0[k]
            b1 += v[k] * x1[k]
            b2 += v[k] * x2[k]
            b3 += v[k] * x3[k]
        out[0, c], out[1, c], out[2, c], out[3, c] = a0, a1, a2, a3
        out[0, c + 1], out[1, c + 1], out[2, c + 1], out[3, c + 1] = b0, b1, b2, b3
    if classes % 2:
        u = weights[classes - 1]
        a0, a1, a2, a3 = _F(0), _F(0), _F(0), _F(0)
        for k in range(width):
            a0 += u[k] * x0[k]
            a1 += u[k] * x1[k]
            a2 += u[k] * x2[k]
            a3 += u[k] * x3[k]
        c = classes - 1
        out[0, c], out[1, c], out[2, c], out[3, c] = a0, a1, a2, a3


@numba.njit(fastmath=True, error_model="numpy")
def _add_outer_products(residuals, x0, x1, x2, x3, sums):
    """Adds the gradients of four records to the sums."""
    classes, width = sums.shape
    for c in range(0, classes - 1, 2):
        a0, a1, a2, a3 = residuals[0, c], residuals[1, c], residuals[2, c], residuals[3, c]
        d = c + 1
        b0, b1, b2, b3 = residuals[0, d], residuals[1, d], residuals[2, d], residuals[3, d]
        g, h = sums[c], sums[d]
        for k in range(width):
            g[k] += a0 * x0[k] + a1 * x1[k] + a2 * x2[k] + a3 * x3[k]
            h[k] += b0 * x0[k] + b1 * x1[k] + b2 * x2[k] + b3 * x3[k]
    if classes % 2:
        c = classes - 1
        a0, a1, a2, a3 = residuals[0, c], residuals[1, c], residuals[2, c], residuals[3, c]
        g = sums[c]
        for k in range(width):
            g[k] += a0 * x0[k] + a1 * x1[k] + a2 * x2[k] + a3 * x3[k]


# What turns outputs into what is compared with the targets: for cross-entropy, binary cross-entropy
# and squared error.
SOFTMAX, SIGMOIDS, IDENTITY = 0, 1, 2


@numba.njit(fastmath=True, error_model="numpy")
def _to_residuals(logits, targets, link):
    """Turns logits (4, classes) into the loss's derivative, in place."""
    records, classes = logits.shape
    if link == IDENTITY:
        for j in range(records):
            for c in range(classes):
                logits[j, c] = _F(2) * (logits[j, c] - targets[j, c])
        return
    if link == SIGMOIDS:
        for j in range(records):
            for c in range(classes):
                p = _F(1) / (_F(1) + exp(-logits[j, c]))
                logits[j, c] = (p - targets[j, c]) / _F(classes)
        return
    for j in range(records):
        row = logits[j]
        top = row[0]
        for c in range(1, classes):
            top = max(top, row[c])
        for c in range(classes):
            row[c] -= top
    flat = logits.reshape(records * classes)
    for k in range(len(flat)):
        flat[k] = exp(flat[k])
    for j in range(records):
        row = logits[j]
        total = _F(0)
        for c in range(classes):
            total += row[c]
        inverse = _F(1) / total
        for c in range(classes):
            row[c] = row[c] * inverse - targets[j, c]


# With error_model="numpy", infinities and NaN reach the output, where the caller reports them.
@numba.njit(nogil=True, fastmath=True, cache=True, error_model="numpy")
def add_clipped_gradients(features, targets, norms, weights, rows, max_grad_norm, link, out):
    """Overwrites `out` with the sum of clipped gradients of each run's batch.

    Args:
        features: float32, shape (records, width); the last record is the null record.
        targets: float32, shape (records, classes): one-hot labels, or the labels themselves.
        norms: float32, shape (records,), of the features.
        weights: float32, shape (runs, classes, width).
        rows: int64, shape (runs, n): records of each run's batch, filled up with the null record.
        max_grad_norm: float32, C.
        link: SOFTMAX, SIGMOIDS or IDENTITY, by the loss.
        out: float32, shape (runs, classes, width).
    """
    runs, classes, _ = weights.shape
    null = len(features) - 1
    residuals = np.empty((_TOGETHER, classes), np.float32)
    chosen_targets = np.empty((_TOGETHER, classes), np.float32)
    chosen = np.empty(_TOGETHER, np.int64)
    for run in range(runs):
        out[run] = _F(0)
        for first in range(0, rows.shape[1], _TOGETHER):
            if rows[run, first] == null:
                break
            for j in range(_TOGETHER):
                inside = first + j < rows.shape[1]
                chosen[j] = rows[run, first + j] if inside else null
                chosen_targets[j] = targets[chosen[j]]
            x0, x1 = features[chosen[0]], features[chosen[1]]
            x2, x3 = features[chosen[2]], features[chosen[3]]
            _logits(weights[run], x0, x1, x2, x3, residuals)
            _to_residuals(residuals, chosen_targets, link)
            for j in range(_TOGETHER):
                square = _F(0)
                for c in range(classes):
                    square += residuals[j, c] * residuals[j, c]
                norm = _F(math.sqrt(square)) * norms[chosen[j]]
                scale = max_grad_norm / norm if norm > max_grad_norm else _F(1)
                for c in range(classes):
                    residuals[j, c] *= scale
            _add_outer_products(residuals, x0, x1, x2, x3, out[run])
