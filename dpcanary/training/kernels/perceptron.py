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

from dpcanary.training.kernels.linear import exp, sigmoid, tanh

_F = np.float32
TANH, SIGMOID, RELU = 0, 1, 2
# All of LLVM's liberties but those that assume numbers to be finite: NaN and infinities must reach
# the output, where the caller reports them.
_FAST = {"reassoc", "contract", "nsz", "arcp"}
compiled = numba.njit(fastmath=_FAST, error_model="numpy")


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
        softmax: whether the loss is cross-entropy of the softmax; if not, it is of sigmoids.
    """

    widths: NDArray[np.int64]
    activations: NDArray[np.int64]
    softmax: bool


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
            model.weights[layer, o, :ins] = parameters[k : k + ins]
            if layer > 0:  # slopes of features are not needed
                model.transposed[layer, :ins, o] = parameters[k : k + ins]
            model.weight_sums[layer, o, :ins] = _F(0)
            k += ins
        model.biases[layer, :outs] = parameters[k : k + outs]
        model.bias_sums[layer, :outs] = _F(0)
        k += outs


@compiled
def _pack(model, widths, out):
    """Writes a run's sums."""
    k = 0
    for layer in range(len(widths) - 1):
        outs, ins = widths[layer + 1], widths[layer]
        for o in range(outs):
            out[k : k + ins] = model.weight_sums[layer, o, :ins]
            k += ins
        out[k : k + outs] = model.bias_sums[layer, :outs]
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
    residuals(logits, labels, layers.softmax, slopes, block.slope_squares[last], size)
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
