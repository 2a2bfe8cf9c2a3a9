"""Clipped gradient sums of small perceptrons on the host, one run after the other.

A run's batch is worked through in blocks of records. A block's numbers and the run's weights stay
in the core's first cache, and every loop over the records of a block uses vector instructions,
however few neurons there are. What a run gets depends on its own batch alone, to the last bit.
"""

import math

import numba
import numpy as np

from dpcanary.training.kernels.layout import (
    block_size,
    even,
    fours,
    gather,
    length,
    no_block,
    no_model,
    no_records,
    pack,
    unpack,
)
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


@compiled
def _forward(layers, model, features, block, size):
    """Outputs of every layer."""
    widths = layers.widths
    inputs = features
    for layer in range(len(widths) - 1):
        outs, outputs = widths[layer + 1], block.outputs[layer]
        multiply(model.weights[layer], model.biases[layer], inputs, outputs[: even(outs)], size)
        if layer < len(layers.activations):
            kind, squares = layers.activations[layer], block.output_squares[layer]
            activate(outputs[:outs], kind, squares, size)
        inputs = outputs[: fours(outs)]


@compiled
def _backward(layers, model, labels, block, size):
    """Slopes of every layer."""
    widths, last = layers.widths, len(layers.widths) - 2
    logits, slopes = block.outputs[last, : widths[-1]], block.slopes[last]
    residuals(logits, labels, layers.softmax, slopes, block.slope_squares[last], size)
    for layer in range(last, 0, -1):
        ins, above = widths[layer], block.slopes[layer, : fours(widths[layer + 1])]
        slopes = block.slopes[layer - 1]
        multiply(model.transposed[layer], model.no_biases, above, slopes[: even(ins)], size)
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
        add_outer_products(slopes[: even(outs)], inputs, model.weight_sums[layer], size)
        inputs = block.outputs[layer, : fours(outs)]


@numba.njit(nogil=True, fastmath=FAST, cache=True, error_model="numpy")
def add_clipped_gradients(table, layers, parameters, rows, weights, max_grad_norm, out):
    """Overwrites `out` with the sum of clipped gradients of each run's batch.

    Args:
        table: a `layout.Table`.
        layers: a `layout.Layers`.
        parameters: float32, shape (runs, parameters), in the order of PyTorch's modules.
        rows: int64, shape (1, n) if the runs share them, else (runs, n); then each run's are
            filled up with the null record.
        weights: float32, shape (runs, n) or (1, n): factors on the records' gradients.
        max_grad_norm: float32, C.
        out: float32, shape (runs, parameters).
    """
    depth, n = len(layers.widths) - 1, rows.shape[1]
    most = fours(layers.widths.max())
    model, block = no_model(depth, most), no_block(depth, most)
    gathered = no_records(n, layers.widths[0])
    null, count, size = len(table.features) - 1, 0, 1
    for run in range(len(parameters)):
        if run < len(rows):
            count = length(rows[run], null)
            size = max(1, block_size(count))
            gather(table, rows[run, :count], gathered)
        factors = weights[min(run, len(weights) - 1)]
        unpack(parameters[run], layers.widths, model)
        for first in range(0, count, size):
            features = gathered.features[first // size]
            labels, squares = gathered.labels[first // size], gathered.squares[first // size]
            these = factors[first : min(first + size, count)]
            _forward(layers, model, features, block, size)
            _backward(layers, model, labels, block, size)
            _clip(block, squares, these, max_grad_norm, size)
            _add_sums(layers, model, features, block, size)
        pack(model, layers.widths, out[run])
