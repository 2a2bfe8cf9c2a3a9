"""Clipped gradient sums of small perceptrons on the host, one run after the other.

A run's batch is worked through in blocks of records. In a block, the numbers of all records in one
neuron are contiguous, so every loop over records uses vector instructions, and a block with the
run's weights stays in the core's first cache. Widths are padded with zeros to multiples of 4, so
that products take two rows by four columns of a matrix at a time without remainders.
"""

import math

import numba
import numpy as np

from dpcanary.training.kernels.elementwise import exp, sigmoid, tanh

_F = np.float32
_LANES = 16  # numbers of a vector; blocks are multiples of it
_BLOCK = 256  # records of a block at most
_PAD = 4
TANH, SIGMOID, RELU = 0, 1, 2
# All of LLVM's liberties but those that assume numbers to be finite: NaN and infinities must reach
# the output, where the caller reports them.
_FAST = {"reassoc", "contract", "nsz", "arcp"}
_compiled = numba.njit(fastmath=_FAST, error_model="numpy")


@_compiled
def _gather(features, labels, squares, rows, count, inputs, wanted, lengths):
    """Copies records into the columns of a block; what is left of it gets the first record."""
    for r in range(count):
        row = rows[r] if r < len(rows) else rows[0]
        wanted[r] = labels[row]
        lengths[r] = squares[row]
        for i in range(features.shape[1]):
            inputs[i, r] = features[row, i]


@_compiled
def _unpack(parameters, widths, matrices, transposed, biases):
    """Each layer's weights, padded with zeros, also transposed, and biases, from a run's row."""
    k = 0
    for layer in range(len(widths) - 1):
        outs, ins = widths[layer + 1], widths[layer]
        for o in range(outs):
            for i in range(ins):
                matrices[layer, o, i] = parameters[k]
                transposed[layer, i, o] = parameters[k]
                k += 1
        for o in range(outs):
            biases[layer, o] = parameters[k]
            k += 1


@_compiled
def _multiply(matrix, biases, inputs, outputs, count):
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


@_compiled
def _add_outer_products(slopes, inputs, sums, bias_sums, count):
    """Adds slopes times transposed inputs, two outputs by four inputs at a time."""
    for o in range(0, len(slopes), 2):
        u, v = slopes[o], slopes[o + 1]
        a, b = _F(0), _F(0)
        for r in range(count):
            a += u[r]
            b += v[r]
        bias_sums[o] += a
        bias_sums[o + 1] += b
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
            g, h = sums[o], sums[o + 1]
            g[i] += a0
            g[i + 1] += a1
            g[i + 2] += a2
            g[i + 3] += a3
            h[i] += b0
            h[i + 1] += b1
            h[i + 2] += b2
            h[i + 3] += b3


@_compiled
def _activate(values, kind, squares, count):
    """Applies an activation in place, and sums squares over neurons."""
    squares[:] = _F(0)
    for o in range(len(values)):
        row = values[o]
        for r in range(count):
            z = row[r]
            if kind == TANH:
                y = tanh(z)
            elif kind == SIGMOID:
                y = sigmoid(z)
            else:
                y = _F(0) if z < _F(0) else z
            row[r] = y
            squares[r] += y * y


@_compiled
def _deactivate(slopes, values, kind, squares, count):
    """Slopes in an activation's input from those in its output, and sums of their squares."""
    squares[:] = _F(0)
    for o in range(len(values)):
        row, slope = values[o], slopes[o]
        for r in range(count):
            y = row[r]
            if kind == TANH:
                d = _F(1) - y * y
            elif kind == SIGMOID:
                d = y * (_F(1) - y)
            else:
                d = _F(1) if y > _F(0) else _F(0)
            g = slope[r] * d
            slope[r] = g
            squares[r] += g * g


@_compiled
def _to_residuals(logits, wanted, softmax, squares, spare, count):
    """Turns logits into the loss's derivative, in place, and sums squares."""
    outputs = len(logits)
    offset = 1 if outputs == 1 else 0
    share = _F(1) if softmax else _F(1) / _F(outputs)
    squares[:] = _F(0)
    spare[:] = _F(1)
    if softmax:
        squares[:] = logits[0]
        for o in range(1, outputs):
            for r in range(count):
                squares[r] = max(squares[r], logits[o, r])
        spare[:] = _F(0)
        for o in range(outputs):
            row = logits[o]
            for r in range(count):
                row[r] = exp(row[r] - squares[r])
                spare[r] += row[r]
        for r in range(count):
            spare[r] = _F(1) / spare[r]
        squares[:] = _F(0)
    for o in range(outputs):
        row = logits[o]
        target = _F(o + offset)
        for r in range(count):
            p = row[r] * spare[r] if softmax else sigmoid(row[r])
            g = (p - (_F(1) if wanted[r] == target else _F(0))) * share
            row[r] = g
            squares[r] += g * g


@numba.njit(nogil=True, fastmath=_FAST, cache=True, error_model="numpy")
def add_clipped_gradients(
    features, labels, squares, widths, kinds, softmax, parameters, rows, weights, max_grad_norm, out
):
    """Overwrites `out` with the sum of clipped gradients of each run's batch."""
    runs, n = len(parameters), rows.shape[1]
    null = len(features) - 1
    layers = len(widths) - 1
    padded = (widths + _PAD - 1) // _PAD * _PAD
    most = padded.max()
    shared = len(rows) == 1
    places = -(-n // _LANES) * _LANES
    blocks = max(1, -(-places // _BLOCK))
    gathered = blocks if shared else 1
    inputs = np.zeros((gathered, padded[0], _BLOCK), np.float32)
    wanted = np.zeros((gathered, _BLOCK), np.float32)
    lengths = np.zeros((gathered, _BLOCK), np.float32)
    values = np.zeros((layers, most, _BLOCK), np.float32)
    slopes = np.zeros((layers, most, _BLOCK), np.float32)
    own = np.zeros((layers + 1, 2, _BLOCK), np.float32)
    matrices = np.zeros((layers, most, most), np.float32)
    transposed = np.zeros((layers, most, most), np.float32)
    biases = np.zeros((layers, most), np.float32)
    none = np.zeros(most, np.float32)
    sums = np.zeros((layers, most, most), np.float32)
    bias_sums = np.zeros((layers, most), np.float32)
    scales = np.empty(_BLOCK, np.float32)
    size = -(-n // (blocks * _LANES)) * _LANES
    if shared:
        for block in range(blocks):
            first = block * size
            _gather(features, labels, squares, rows[0, first : first + size], size, inputs[block], wanted[block], lengths[block])
    for run in range(runs):
        _unpack(parameters[run], widths, matrices, transposed, biases)
        sums[:] = _F(0)
        bias_sums[:] = _F(0)
        mine = weights[min(run, len(weights) - 1)]
        for block in range(blocks):
            first = block * size
            b = block
            if not shared:
                b = 0
                _gather(features, labels, squares, rows[run, first : first + size], size, inputs[0], wanted[0], lengths[0])
            below = inputs[b]
            for layer in range(layers):
                outs = padded[layer + 1]
                z = values[layer, :outs]
                _multiply(matrices[layer], biases[layer], below, z, size)
                if layer < layers - 1:
                    _activate(z[: widths[layer + 1]], kinds[layer], own[layer + 1, 0], size)
                below = z
            _to_residuals(below[: widths[layers]], wanted[b], softmax, own[layers - 1, 1], scales, size)
            slope = below
            # slopes of the last layer live in values[layers - 1]
            for layer in range(layers - 1, 0, -1):
                ins = padded[layer]
                back = slopes[layer - 1, :ins]
                _multiply(transposed[layer], none, slope, back, size)
                _deactivate(back[: widths[layer]], values[layer - 1, : widths[layer]], kinds[layer - 1], own[layer - 1, 1], size)
                slope = back
            total = scales
            for r in range(size):
                total[r] = (lengths[b, r] + _F(1)) * own[0, 1, r]
            for layer in range(1, layers):
                for r in range(size):
                    total[r] += (own[layer, 0, r] + _F(1)) * own[layer, 1, r]
            for r in range(size):
                norm = _F(math.sqrt(total[r]))
                total[r] = max_grad_norm / norm if norm > max_grad_norm else _F(1)
            for r in range(min(size, n - first)):
                total[r] *= mine[first + r]
            for r in range(n - first, size):
                total[r] = _F(0)
            for layer in range(layers):
                outs = padded[layer + 1]
                slope = values[layer, :outs] if layer == layers - 1 else slopes[layer, :outs]
                for o in range(widths[layer + 1]):
                    row = slope[o]
                    for r in range(size):
                        row[r] *= total[r]
                below = inputs[b] if layer == 0 else values[layer - 1, : padded[layer]]
                _add_outer_products(slope, below, sums[layer], bias_sums[layer], size)
        k = 0
        for layer in range(layers):
            for o in range(widths[layer + 1]):
                for i in range(widths[layer]):
                    out[run, k] = sums[layer, o, i]
                    k += 1
            for o in range(widths[layer + 1]):
                out[run, k] = bias_sums[layer, o]
                k += 1
