"""How small perceptrons, their batches and what is computed of them lie in memory.

Neurons are padded with zeros to a multiple of 4, so that products need no remainders. Records are
in blocks of a multiple of 16, the length of a vector.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpcanary.training.kernels.neurons import compiled

_F = np.float32
_LANES = 16
_ROOM = 256  # records of a block at most: 16 rows of them take half of the first cache
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


class Gathered(NamedTuple):
    """Blocks of records: features (blocks, neurons, room), labels and squares (blocks, room)."""

    features: _Floats
    labels: _Floats
    squares: _Floats


class Model(NamedTuple):
    """A run's parameters and sums, by layer: (layers, most, most) and, of biases, (layers, most).

    Beyond a layer's widths, its parameters are 0, and its sums are not used.
    """

    weights: _Floats
    transposed: _Floats
    biases: _Floats
    no_biases: _Floats
    weight_sums: _Floats
    bias_sums: _Floats


class Block(NamedTuple):
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
def even(count):
    """The next even number."""
    return (count + 1) // 2 * 2


@compiled
def fours(count):
    """The next multiple of 4."""
    return (count + 3) // 4 * 4


@compiled
def block_size(count):
    """Records of each block, so that as few blocks as possible are of the same size."""
    blocks = max(1, -(-count // _ROOM))
    return -(-count // (blocks * _LANES)) * _LANES


@compiled
def length(rows, null):
    """How many rows come before the first null row."""
    for place in range(len(rows)):
        if rows[place] == null:
            return place
    return len(rows)


@compiled
def gather(table, rows, gathered):
    """Copies records into blocks; the last block is filled up with its first record."""
    size = block_size(len(rows))
    for first in range(0, len(rows), max(size, 1)):
        block = first // size
        for r in range(size):
            row = rows[first + r] if first + r < len(rows) else rows[first]
            gathered.labels[block, r] = table.labels[row]
            gathered.squares[block, r] = table.squares[row]
            for i in range(table.features.shape[1]):
                gathered.features[block, i, r] = table.features[row, i]


@compiled
def unpack(parameters, widths, model):
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
def pack(model, widths, out):
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
def no_records(count, width):
    """Room for a batch of `count` records."""
    blocks = -(-count // _ROOM)
    return Gathered(
        np.zeros((blocks, fours(width), _ROOM), _F),
        np.zeros((blocks, _ROOM), _F),
        np.zeros((blocks, _ROOM), _F),
    )


@compiled
def no_model(depth, most):
    """A model of zeros."""
    square, row = (depth, most, most), (depth, most)
    return Model(
        np.zeros(square, _F),
        np.zeros(square, _F),
        np.zeros(row, _F),
        np.zeros(most, _F),
        np.zeros(square, _F),
        np.zeros(row, _F),
    )


@compiled
def no_block(depth, most):
    """A block of zeros."""
    wide, flat = (depth, most, _ROOM), (depth, _ROOM)
    return Block(
        np.zeros(wide, _F),
        np.zeros(wide, _F),
        np.zeros(flat, _F),
        np.zeros(flat, _F),
        np.zeros(_ROOM, _F),
    )
