"""Gradients of a convolution, max pooling and ReLU on the host, for a few channels.

After the pooling, the loss depends on one position of each window, and after a ReLU on about half
of these. Only these positions are used. The images have their channels last, so that a row of a
patch is contiguous.
"""

import numpy as np

from dpcanary.training.kernels.convolution import compiled
from dpcanary.training.kernels.lanes import WIDTH, add_product, filled, load, store

_F = np.float32
_TOGETHER = 4  # sums that grow in turn, since each step of a sum waits for the one before


@compiled
def _used(slopes, maxima, winners, relu, channels, values, offsets):
    """Lists one channel's gradients that are not zero, and where their patches start.

    Returns:
        Their number; zeros fill up the lists to a multiple of four.
    """
    count = 0
    for i in range(slopes.shape[0]):
        for j in range(slopes.shape[1]):
            slope = _F(0) if relu and maxima[i, j] <= _F(0) else slopes[i, j]
            values[count] = slope
            offsets[count] = np.int64(winners[i, j]) * channels
            count += slope != _F(0)
    while count % _TOGETHER:
        values[count], offsets[count] = _F(0), 0
        count += 1
    return count


@compiled
def _patch_row(image, values, offsets, count, shift):
    """Sum of values times the 16 numbers at their offsets plus `shift`."""
    a = b = c = d = filled(_F(0))
    for k in range(0, count, _TOGETHER):
        a = add_product(a, values[k], load(image, offsets[k] + shift))
        b = add_product(b, values[k + 1], load(image, offsets[k + 1] + shift))
        c = add_product(c, values[k + 2], load(image, offsets[k + 2] + shift))
        d = add_product(d, values[k + 3], load(image, offsets[k + 3] + shift))
    return add_product(add_product(a, _F(1), b), _F(1), add_product(c, _F(1), d))


@compiled
def _write_in_order(row_sums, ins, width, out):
    """Writes a kernel's gradient, shape (height, width x channels in or more), channels first."""
    k = 0
    for c in range(ins):
        for i in range(len(row_sums)):
            for j in range(width):
                out[k] = row_sums[i, j * ins + c]
                k += 1


@compiled
def record_gradients(inputs, rows, slopes, maxima, winners, relu, padding, kernel, out):
    """Gradient of each record in the weights and the biases.

    Args:
        inputs: as in `pooled_convolutions`.
        rows: as there.
        slopes: gradient in the maxima, in their shape.
        maxima: of `pooled_convolutions`.
        winners: of `pooled_convolutions`.
        relu: as there.
        padding: as there.
        kernel: its height and width.
        out: float32, shape (n, parameters), overwritten; weights first.
    """
    ins, height, width = inputs.shape[1:]
    outs, size = slopes.shape[1], ins * kernel[0] * kernel[1]
    image, inner, step = _channels_last(ins, height, width, padding)
    chunks = -(-ins * kernel[1] // WIDTH)
    sums = np.empty((kernel[0], chunks * WIDTH), np.float32)
    values = np.empty(slopes.shape[2] * slopes.shape[3] + _TOGETHER, np.float32)
    offsets = np.empty(len(values), np.int64)
    for r in range(len(rows)):
        for c in range(ins):
            inner[:, :, c] = inputs[rows[r], c]
        for o in range(outs):
            count = _used(slopes[r, o], maxima[r, o], winners[r, o], relu, ins, values, offsets)
            for i in range(kernel[0]):
                for k in range(0, chunks * WIDTH, WIDTH):
                    store(sums[i], k, _patch_row(image, values, offsets, count, i * step + k))
            _write_in_order(sums, ins, kernel[1], out[r, o * size : (o + 1) * size])
            out[r, outs * size + o] = values[:count].sum()


@compiled
def _channels_last(ins, height, width, padding):
    """A padded image of zeros, its inner part as (height, width, channels), and a row's length."""
    rows, columns = height + 2 * padding[0], width + 2 * padding[1]
    image = np.zeros(rows * columns * ins + WIDTH, np.float32)
    whole = image[: rows * columns * ins].reshape(rows, columns, ins)
    inner = whole[padding[0] : padding[0] + height, padding[1] : padding[1] + width]
    return image, inner, columns * ins


@compiled
def input_gradients(slopes, maxima, winners, relu, weights, padding, out):
    """Gradient in each record's input.

    Args:
        slopes: gradient in the maxima, in their shape.
        maxima: of `pooled_convolutions`.
        winners: of `pooled_convolutions`.
        relu: as there.
        weights: as there.
        padding: as there.
        out: float32, shape (n, channels in, H, W), overwritten.
    """
    outs, ins, kernel_height, kernel_width = weights.shape
    image, inner, step = _channels_last(ins, out.shape[2], out.shape[3], padding)
    width = -(-ins * kernel_width // WIDTH) * WIDTH
    patches = np.zeros((outs, kernel_height, width), np.float32)
    for c in range(ins):
        for j in range(kernel_width):
            patches[:, :, j * ins + c] = weights[:, c, :, j]
    values = np.empty(slopes.shape[2] * slopes.shape[3] + _TOGETHER, np.float32)
    offsets = np.empty(len(values), np.int64)
    for r in range(len(slopes)):
        image[:] = _F(0)
        for o in range(outs):
            count = _used(slopes[r, o], maxima[r, o], winners[r, o], relu, ins, values, offsets)
            for k in range(count):
                for i in range(kernel_height):
                    _add_row(image, offsets[k] + i * step, values[k], patches[o, i])
        for c in range(ins):
            out[r, c] = inner[:, :, c]


@compiled
def _add_row(image, first, value, patch):
    """Adds a value times one row of a patch to the image."""
    for k in range(0, len(patch), WIDTH):
        row = load(image, first + k)
        store(image, first + k, add_product(row, value, load(patch, k)))
