"""Loops over the records of a block, in which the numbers of a neuron are contiguous.

An array of neurons has shape (neurons, room), of which `count` records, a multiple of the length of
vectors, are used. Neurons are padded to a multiple of 4, and of the padding only zeros are read.
"""

import numba
import numpy as np

from dpcanary.training.kernels.elementwise import exp, sigmoid, tanh

_F = np.float32
TANH, SIGMOID, RELU = 0, 1, 2
# All of LLVM's liberties but those that assume numbers to be finite: NaN and infinities must reach
# the output, where the caller reports them.
FAST = {"reassoc", "contract", "nsz", "arcp"}
compiled = numba.njit(fastmath=FAST, error_model="numpy")


@compiled
def multiply(matrix, biases, inputs, outputs, count):
    """Matrix times inputs plus biases, two outputs by four inputs at a time."""
    for o in range(0, len(outputs), 2):
        a, b, u, v = matrix[o], matrix[o + 1], outputs[o], outputs[o + 1]
        for i in range(0, len(inputs), 4):
            x0, x1, x2, x3 = inputs[i], inputs[i + 1], inputs[i + 2], inputs[i + 3]
            a0, a1, a2, a3 = a[i], a[i + 1], a[i + 2], a[i + 3]
            b0, b1, b2, b3 = b[i], b[i + 1], b[i + 2], b[i + 3]
            if i == 0:
                c, d = biases[o], biases[o + 1]
                for r in range(count):
                    u[r] = c + a0 * x0[r] + a1 * x1[r] + a2 * x2[r] + a3 * x3[r]
                    v[r] = d + b0 * x0[r] + b1 * x1[r] + b2 * x2[r] + b3 * x3[r]
            else:
                for r in range(count):
                    u[r] += a0 * x0[r] + a1 * x1[r] + a2 * x2[r] + a3 * x3[r]
                    v[r] += b0 * x0[r] + b1 * x1[r] + b2 * x2[r] + b3 * x3[r]


@compiled
def add_outer_products(slopes, inputs, sums, count):
    """Adds slopes times transposed inputs to sums, two slopes by four inputs at a time."""
    for o in range(0, len(slopes), 2):
        u, v, g, h = slopes[o], slopes[o + 1], sums[o], sums[o + 1]
        for i in range(0, len(inputs), 4):
            x0, x1, x2, x3 = inputs[i], inputs[i + 1], inputs[i + 2], inputs[i + 3]
            a0, a1, a2, a3 = _F(0), _F(0), _F(0), _F(0)
            b0, b1, b2, b3 = _F(0), _F(0), _F(0), _F(0)
            for r in range(count):
                a0 += u[r] * x0[r]
                a1 += u[r] * x1[r]
                a2 += u[r] * x2[r]
                a3 += u[r] * x3[r]
                b0 += v[r] * x0[r]
                b1 += v[r] * x1[r]
                b2 += v[r] * x2[r]
                b3 += v[r] * x3[r]
            for k, total in enumerate((a0, a1, a2, a3)):
                g[i + k] += total
            for k, total in enumerate((b0, b1, b2, b3)):
                h[i + k] += total


@compiled
def scale_rows(slopes, scales, sums, count):
    """Multiplies slopes by each record's scale, and adds them up to sums, one for each neuron."""
    for o in range(len(slopes)):
        row, total = slopes[o], _F(0)
        for r in range(count):
            row[r] *= scales[r]
            total += row[r]
        sums[o] += total


@compiled
def activate(values, kind, squares, count):
    """Applies an activation in place, and sets squares to the records' squared lengths."""
    squares[:count] = _F(0)
    for o in range(len(values)):
        row = values[o]
        for r in range(count):
            if kind == TANH:
                y = tanh(row[r])
            elif kind == SIGMOID:
                y = sigmoid(row[r])
            else:
                y = _F(0) if row[r] < _F(0) else row[r]  # NaN stays NaN
            row[r] = y
            squares[r] += y * y


@compiled
def deactivate(slopes, values, kind, squares, count):
    """From slopes in an activation's output to those in its input, in place; sets squares."""
    squares[:count] = _F(0)
    for o in range(len(values)):
        row, slope = values[o], slopes[o]
        for r in range(count):
            y = row[r]
            if kind == TANH:
                g = slope[r] * (_F(1) - y * y)
            elif kind == SIGMOID:
                g = slope[r] * (y * (_F(1) - y))
            else:
                g = _F(0) if y <= _F(0) else slope[r]
            slope[r] = g
            squares[r] += g * g


@compiled
def residuals(logits, labels, softmax, slopes, squares, count):
    """Sets slopes to the loss's derivative in the logits, which are overwritten; sets squares."""
    outputs = len(logits)
    if softmax:
        _to_probabilities(logits, squares, count)
    share = _F(1) if softmax else _F(1) / _F(outputs)
    squares[:count] = _F(0)
    for o in range(outputs):
        label = _F(1) if outputs == 1 else _F(o)
        row, slope = logits[o], slopes[o]
        for r in range(count):
            p = row[r] if softmax else sigmoid(row[r])
            g = (p - (_F(1) if labels[r] == label else _F(0))) * share
            slope[r] = g
            squares[r] += g * g


@compiled
def _to_probabilities(logits, spare, count):
    """Softmax in place."""
    spare[:count] = logits[0, :count]
    for row in logits:
        for r in range(count):
            spare[r] = row[r] if row[r] > spare[r] else spare[r]
    for row in logits:
        for r in range(count):
            row[r] = exp(row[r] - spare[r])
    spare[:count] = _F(0)
    for row in logits:
        for r in range(count):
            spare[r] += row[r]
    for r in range(count):
        spare[r] = _F(1) / spare[r]
    for row in logits:
        for r in range(count):
            row[r] *= spare[r]
