"""Clipped gradient sums of small perceptrons on the host, one run after the other.

A run's batch is worked through in blocks of records. A block's numbers and the run's weights stay
in the core's first cache, and every loop over the records of a block uses vector instructions,
however few neurons there are. What a run gets depends on its own batch alone, to the last bit.
"""

import math
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from dpcanary.training.kernels.linear_kernel import IDENTITY, SOFTMAX, exp, sigmoid, tanh

_F = np.float32
TANH, SIGMOID, RELU = 0, 1, 2
# All of LLVM's liberties but those that assume numbers to be finite: NaN and infinities must reach
# the output, where the caller reports them.
_FAST = {"reassoc", "contract", "nsz", "arcp"}
# Inlined, and arrays indexed in whole: a call or a row's view counts references, which takes longer
# than the few neurons do.
compiled = numba.njit(fastmath=_FAST, error_model="numpy", inline="always")


@compiled
def multiply(matrix, biases, inputs, outputs, count):
    """Matrix times inputs plus biases, two outputs by four inputs at a time."""
    for o in range(0, len(outputs), 2):
        p = o + 1
        for i in range(0, len(inputs), 4):
            j, k, m = i + 1, i + 2, i + 3
            a0, a1, a2, a3 = matrix[o, i], matrix[o, j], matrix[o, k], matrix[o, m]
            b0, b1, b2, b3 = matrix[p, i], matrix[p, j], matrix[p, k], matrix[p, m]
            if i == 0:
                c, d = biases[o], biases[p]
                for r in range(count):
                    x0, x1, x2, x3 = inputs[i, r], inputs[j, r], inputs[k, r], inputs[m, r]
                    outputs[o, r] = c + a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                    outputs[p, r] = d + b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
            else:
                for r in range(count):
                    x0, x1, x2, x3 = inputs[i, r], inputs[j, r], inputs[k, r], inputs[m, r]
                    outputs[o, r] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                    outputs[p, r] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3


@compiled
def add_outer_products(slopes, inputs, sums, count):
    """Adds slopes times transposed inputs to sums, two slopes by four inputs at a time."""
    for o in range(0, len(slopes), 2):
        p = o + 1
        for i in range(0, len(inputs), 4):
            j, k, m = i + 1, i + 2, i + 3
            a0, a1, a2, a3 = _F(0), _F(0), _F(0), _F(0)
            b0, b1, b2, b3 = _F(0), _F(0), _F(0), _F(0)
            for r in range(count):
                u, v = slopes[o, r], slopes[p, r]
                a0 += u * inputs[i, r]
                a1 += u * inputs[j, r]
                a2 += u * inputs[k, r]
                a3 += u * inputs[m, r]
                b0 += v * inputs[i, r]
                b1 += v * inputs[j, r]
                b2 += v * inputs[k, r]
                b3 += v * inputs[m, r]
            sums[o, i] += a0
            sums[o, j] += a1
            sums[o, k] += a2
            sums[o, m] += a3
            sums[p, i] += b0
            sums[p, j] += b1
            sums[p, k] += b2
            sums[p, m] += b3


@compiled
def scale_rows(slopes, scales, sums, count):
    """Multiplies slopes by each record's scale, and adds them up to sums, one for each neuron."""
    for o in range(len(slopes)):
        total = _F(0)
        for r in range(count):
            slopes[o, r] *= scales[r]
            total += slopes[o, r]
        sums[o] += total


@compiled
def activate(values, kind, squares, count):
    """Applies an activation in place, and sets squares to the records' squared lengths."""
    for r in range(count):
        squares[r] = _F(0)
    for o in range(len(values)):
        for r in range(count):
            x = values[o, r]
            if kind == TANH:
                y = tanh(x)
            elif kind == SIGMOID:
                y = sigmoid(x)
            else:
                y = _F(0) if x < _F(0) else x  # NaN stays NaN
            values[o, r] = y
            squares[r] += y * y


@compiled
def deactivate(slopes, values, kind, squares, count):
    """From slopes in an activation's output to those in its input, in place; sets squares."""
    for r in range(count):
        squares[r] = _F(0)
    for o in range(len(values)):
        for r in range(count):
            y, g = values[o, r], slopes[o, r]
            if kind == TANH:
                g = g * (_F(1) - y * y)
            elif kind == SIGMOID:
                g = g * (y * (_F(1) - y))
            else:
                g = _F(0) if y <= _F(0) else g
            slopes[o, r] = g
            squares[r] += g * g


@compiled
def residuals(logits, labels, link, slopes, squares, count):
    """Sets slopes to the loss's derivative in the logits, which are overwritten; sets squares."""
    outputs, softmax = len(logits), link == SOFTMAX
    if softmax:
        _to_probabilities(logits, squares, count)
    share = _F(1) if softmax else _F(1) / _F(outputs)
    for r in range(count):
        squares[r] = _F(0)
    if link == IDENTITY:  # there is one output
        for r in range(count):
            g = _F(2) * (logits[0, r] - labels[r])
            slopes[0, r] = g
            squares[r] = g * g
        outputs = 0
    for o in range(outputs):
        label = _F(1) if outputs == 1 else _F(o)
        for r in range(count):
            p = logits[o, r] if softmax else sigmoid(logits[o, r])
            g = (p - (_F(1) if labels[r] == label else _F(0))) * share
            slopes[o, r] = g
            squares[r] += g * g


@compiled
def _to_probabilities(logits, spare, count):
    """Softmax in place."""
    for r in range(count):
        spare[r] = logits[0, r]
    for o in range(1, len(logits)):
        for r in range(count):
            spare[r] = logits[o, r] if logits[o, r] > spare[r] else spare[r]
    for o in range(len(logits)):
        for r in range(count):
            logits[o, r] = exp(logits[o, r] - spare[r])
    for r in range(count):
        spare[r] = _F(0)
    for o in range(len(logits)):
        for r in range(count):
            spare[r] += logits[o, r]
    for r in range(count):
        spare[r] = _F(1) / spare[r]
    for o in range(len(logits)):
        for r in range(count):
            logits[o, r] *= spare[r]


_LANES = 16
_ROOM = 256  # records of a block at most: 16 rows of them take half of the first cache
_Floats = NDArray[np.float32]


class Table(NamedTuple):
    """Records in float32: features (records, width), labels and squared lengths of features.

    The last record is the null record. In blocks of records, features have shape (blocks, neurons,
    room), and the others (blocks, room).
    """

    features: _Floats
    labels: _Floats
    squares: _Floats


class Layers(NamedTuple):
    """The layers of a perceptron.

    Attributes:
        widths: int64, shape (layers + 1,): features, then the outputs of each layer.
        activations: int64, shape (layers - 1,): TANH, SIGMOID or RELU behind each layer.
        link: SOFTMAX, SIGMOIDS or IDENTITY, by the loss.
    """

    widths: NDArray[np.int64]
    activations: NDArray[np.int64]
    link: int


class _Model(NamedTuple):
    """A run's parameters and sums, by layer: (layers, most, most) and, of biases, (layers, most).

    Beyond a layer's widths, its parameters are 0, and its sums are not used.
    """

    weights: _Floats
    transposed: _Floats
    biases: _Floats
    no_biases: _Floats
    weight_sums: _Floats
    bias_sums: _Floats


class _Block(NamedTuple):
    """What is computed of a block of records, by layer.

    Outputs (behind the activation) and slopes (of the loss, before it) have shape (layers, most,
    room); squared lengths of both have shape (layers, room), and scales (room,).
    """

    outputs: _Floats
    slopes: _Floats
    output_squares: _Floats
    slope_squares: _Floats
    scales: _Floats


@compiled
def _up_to(count, multiple):
    """The next multiple."""
    return (count + multiple - 1) // multiple * multiple


@compiled
def _block_size(count):
    """Records of each block, so that as few blocks as possible are of the same size."""
    blocks = max(1, -(-count // _ROOM))
    return -(-count // (blocks * _LANES)) * _LANES


@compiled
def _length(rows, null):
    """How many rows come before the first null row."""
    for place in range(len(rows)):
        if rows[place] == null:
            return place
    return len(rows)


@compiled
def _gather(table, rows, gathered):
    """Copies records into blocks; the last block is filled up with its first record."""
    size = _block_size(len(rows))
    for first in range(0, len(rows), max(size, 1)):
        block = first // size
        for r in range(size):
            row = rows[first + r] if first + r < len(rows) else rows[first]
            gathered.labels[block, r] = table.labels[row]
            gathered.squares[block, r] = table.squares[row]
            for i in range(table.features.shape[1]):
                gathered.features[block, i, r] = table.features[row, i]


@compiled
def _unpack(parameters, widths, model):
    """Reads a run's parameters, and sets its sums to 0."""
    k = 0
    for layer in range(len(widths) - 1):
        outs, ins = widths[layer + 1], widths[layer]
        for o in range(outs):
            for i in range(ins):
                model.weights[layer, o, i] = parameters[k + i]
                model.transposed[layer, i, o] = parameters[k + i]
                model.weight_sums[layer, o, i] = _F(0)
            k += ins
        for o in range(outs):
            model.biases[layer, o] = parameters[k + o]
            model.bias_sums[layer, o] = _F(0)
        k += outs


@compiled
def _pack(model, widths, out):
    """Writes a run's sums."""
    k = 0
    for layer in range(len(widths) - 1):
        outs, ins = widths[layer + 1], widths[layer]
        for o in range(outs):
            for i in range(ins):
                out[k + i] = model.weight_sums[layer, o, i]
            k += ins
        for o in range(outs):
            out[k + o] = model.bias_sums[layer, o]
        k += outs


@compiled
def _forward(layers, model, features, block, size):
    """Outputs of every layer."""
    widths = layers.widths
    inputs = features
    for layer in range(len(widths) - 1):
        outs, outputs = widths[layer + 1], block.outputs[layer]
        multiply(
            model.weights[layer], model.biases[layer], inputs, outputs[: _up_to(outs, 2)], size
        )
        if layer < len(layers.activations):
            kind, squares = layers.activations[layer], block.output_squares[layer]
            activate(outputs[:outs], kind, squares, size)
        inputs = outputs[: _up_to(outs, 4)]


@compiled
def _backward(layers, model, labels, block, size):
    """Slopes of every layer."""
    widths, last = layers.widths, len(layers.widths) - 2
    logits, slopes = block.outputs[last, : widths[-1]], block.slopes[last]
    residuals(logits, labels, layers.link, slopes, block.slope_squares[last], size)
    for layer in range(last, 0, -1):
        ins, above = widths[layer], block.slopes[layer, : _up_to(widths[layer + 1], 4)]
        slopes = block.slopes[layer - 1]
        multiply(model.transposed[layer], model.no_biases, above, slopes[: _up_to(ins, 2)], size)
        outputs, kind = block.outputs[layer - 1, :ins], layers.activations[layer - 1]
        deactivate(slopes, outputs, kind, block.slope_squares[layer - 1], size)


@compiled
def _clip(block, squares, weights, max_grad_norm, size):
    """Sets the scale of every record: what clipping leaves of it times its weight."""
    scales = block.scales
    for r in range(size):  # the bias counts as one more input, which is 1
        scales[r] = (squares[r] + _F(1)) * block.slope_squares[0, r]
    for layer in range(1, len(block.slopes)):
        for r in range(size):
            square = block.output_squares[layer - 1, r] + _F(1)
            scales[r] += square * block.slope_squares[layer, r]
    for r in range(size):
        norm = _F(math.sqrt(scales[r]))
        scales[r] = max_grad_norm / norm if norm > max_grad_norm else _F(1)
    for r in range(len(weights)):
        scales[r] *= weights[r]
    scales[len(weights) : size] = _F(0)


@compiled
def _add_sums(layers, model, features, block, size):
    """Adds the clipped gradients of a block to the run's sums."""
    widths = layers.widths
    inputs = features
    for layer in range(len(widths) - 1):
        outs, slopes = widths[layer + 1], block.slopes[layer]
        scale_rows(slopes[:outs], block.scales, model.bias_sums[layer], size)
        add_outer_products(slopes[: _up_to(outs, 2)], inputs, model.weight_sums[layer], size)
        inputs = block.outputs[layer, : _up_to(outs, 4)]


@numba.njit(nogil=True, fastmath=_FAST, cache=True, error_model="numpy")
def add_clipped_gradients(table, layers, parameters, rows, weights, max_grad_norm, out):
    """Overwrites `out` with the sum of clipped gradients of each run's batch.

    Args:
        table: a `Table`.
        layers: `Layers`.
        parameters: float32, shape (runs, parameters), in the order of PyTorch's modules.
        rows: int64, shape (1, n) if the runs share them, else (runs, n); then each run's are
            filled up with the null record.
        weights: float32, shape (runs, n) or (1, n): factors on the records' gradients.
        max_grad_norm: float32, C.
        out: float32, shape (runs, parameters).
    """
    widths, n = layers.widths, rows.shape[1]
    most = _up_to(widths.max(), 4)
    depth, num_blocks = len(widths) - 1, -(-n // _ROOM)
    square, row = (depth, most, most), (depth, most)
    model = _Model(
        np.zeros(square, _F),
        np.zeros(square, _F),
        np.zeros(row, _F),
        np.zeros(most, _F),
        np.zeros(square, _F),
        np.zeros(row, _F),
    )
    wide, flat = (depth, most, _ROOM), (depth, _ROOM)
    block = _Block(
        np.zeros(wide, _F),
        np.zeros(wide, _F),
        np.zeros(flat, _F),
        np.zeros(flat, _F),
        np.zeros(_ROOM, _F),
    )
    gathered = Table(
        np.zeros((num_blocks, _up_to(widths[0], 4), _ROOM), _F),
        np.zeros((num_blocks, _ROOM), _F),
        np.zeros((num_blocks, _ROOM), _F),
    )
    null, count, size = len(table.features) - 1, 0, 1
    for run in range(len(parameters)):
        if run < len(rows):
            count = _length(rows[run], null)
            size = max(1, _block_size(count))
            _gather(table, rows[run, :count], gathered)
        factors = weights[min(run, len(weights) - 1)]
        _unpack(parameters[run], widths, model)
        for first in range(0, count, size):
            features = gathered.features[first // size]
            labels, squares = gathered.labels[first // size], gathered.squares[first // size]
            these = factors[first : min(first + size, count)]
            _forward(layers, model, features, block, size)
            _backward(layers, model, labels, block, size)
            _clip(block, squares, these, max_grad_norm, size)
            _add_sums(layers, model, features, block, size)
        _pack(model, widths, out[run])
