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

from dpcanary.training.kernels.neurons import (
    FAST,
    activate,
    add_outer_products,
    compiled,
    deactivate,
    multiply,
    residuals,
    scale_rows,
)

_F = np.float32
_LANES = 16  # records of a vector; blocks are multiples of it
_ROOM = 256  # records of a block at most
_Floats = NDArray[np.float32]


class Table(NamedTuple):
    """Records: features (records, width), labels and squared lengths of features (records,).

    All are float32. The last record is the null record.
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


class _Gathered(NamedTuple):
    """Blocks of records: features (blocks, neurons, room), labels and squares (blocks, room)."""

    features: _Floats
    labels: _Floats
    squares: _Floats


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
def _even(count):
    return (count + 1) // 2 * 2


@compiled
def _fours(count):
    return (count + 3) // 4 * 4


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
        multiply(model.weights[layer], model.biases[layer], inputs, outputs[: _even(outs)], size)
        if layer < len(layers.activations):
            kind, squares = layers.activations[layer], block.output_squares[layer]
            activate(outputs[:outs], kind, squares, size)
        inputs = outputs[: _fours(outs)]


@compiled
def _backward(layers, model, labels, block, size):
    """Slopes of every layer."""
    widths, last = layers.widths, len(layers.widths) - 2
    logits, slopes = block.outputs[last, : widths[-1]], block.slopes[last]
    residuals(logits, labels, layers.softmax, slopes, block.slope_squares[last], size)
    for layer in range(last, 0, -1):
        ins, above = widths[layer], block.slopes[layer, : _fours(widths[layer + 1])]
        slopes = block.slopes[layer - 1]
        multiply(model.transposed[layer], model.no_biases, above, slopes[: _even(ins)], size)
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
        add_outer_products(slopes[: _even(outs)], inputs, model.weight_sums[layer], size)
        inputs = block.outputs[layer, : _fours(outs)]


@compiled
def _zeros(depth, most):
    """An empty model and an empty block."""
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
    return model, block


@numba.njit(nogil=True, fastmath=FAST, cache=True, error_model="numpy")
def add_clipped_gradients(table, layers, parameters, rows, weights, max_grad_norm, out):
    """Overwrites `out` with the sum of clipped gradients of each run's batch.

    Args:
        table: a `Table`.
        layers: a `Layers`.
        parameters: float32, shape (runs, parameters), in the order of PyTorch's modules.
        rows: int64, shape (1, n) if the runs share them, else (runs, n); then each run's are
            filled up with the null record.
        weights: float32, shape (runs, n) or (1, n): factors on the records' gradients.
        max_grad_norm: float32, C.
        out: float32, shape (runs, parameters).
    """
    depth, n = len(layers.widths) - 1, rows.shape[1]
    model, block = _zeros(depth, _fours(layers.widths.max()))
    blocks = -(-n // _ROOM)
    gathered = _Gathered(
        np.zeros((blocks, _fours(layers.widths[0]), _ROOM), _F),
        np.zeros((blocks, _ROOM), _F),
        np.zeros((blocks, _ROOM), _F),
    )
    null, count, size = len(table.features) - 1, 0, 1
    for run in range(len(parameters)):
        if run < len(rows):
            count = _length(rows[run], null)
            size = max(1, _block_size(count))
            _gather(table, rows[run, :count], gathered)
        factors = weights[min(run, len(weights) - 1)]
        _unpack(parameters[run], layers.widths, model)
        for first in range(0, count, size):
            features = gathered.features[first // size]
            labels, squares = gathered.labels[first // size], gathered.squares[first // size]
            these = factors[first : min(first + size, count)]
            _forward(layers, model, features, block, size)
            _backward(layers, model, labels, block, size)
            _clip(block, squares, these, max_grad_norm, size)
            _add_sums(layers, model, features, block, size)
        _pack(model, layers.widths, out[run])
