"""A convolution, max pooling and ReLU on the host, for a few channels.

Six channels of 32 positions stay in registers. Positions are numbered along the rows of the padded
image, so that a tap of the kernel is a shift of the whole image; positions at the ends of rows are
computed but not used.
"""

import numba
import numpy as np

from dpcanary.training.kernels.lanes import (
    WIDTH,
    add_product,
    counted,
    filled,
    load,
    store,
    where_larger,
)

_F = np.float32
_CHANNELS, _POSITIONS = 6, 2 * WIDTH  # of a tile of the forward pass
# Not all of fastmath: it would assume that no number is NaN.
compiled = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "nsz"})


@compiled
def _put(sums, first, low, high):
    store(sums, first, low)
    store(sums, first + WIDTH, high)


@compiled
def _tile(image, offsets, taps, biases, first, sums):
    """Writes six channels of 32 positions from `first` on into `sums`."""
    a0, a1, a2 = filled(biases[0]), filled(biases[1]), filled(biases[2])
    a3, a4, a5 = filled(biases[3]), filled(biases[4]), filled(biases[5])
    b0, b1, b2, b3, b4, b5 = a0, a1, a2, a3, a4, a5
    for t in range(len(offsets)):
        x = load(image, offsets[t] + first)
        y = load(image, offsets[t] + first + WIDTH)
        a0, b0 = add_product(a0, taps[t, 0], x), add_product(b0, taps[t, 0], y)
        a1, b1 = add_product(a1, taps[t, 1], x), add_product(b1, taps[t, 1], y)
        a2, b2 = add_product(a2, taps[t, 2], x), add_product(b2, taps[t, 2], y)
        a3, b3 = add_product(a3, taps[t, 3], x), add_product(b3, taps[t, 3], y)
        a4, b4 = add_product(a4, taps[t, 4], x), add_product(b4, taps[t, 4], y)
        a5, b5 = add_product(a5, taps[t, 5], x), add_product(b5, taps[t, 5], y)
    _put(sums[0], first, a0, b0)
    _put(sums[1], first, a1, b1)
    _put(sums[2], first, a2, b2)
    _put(sums[3], first, a3, b3)
    _put(sums[4], first, a4, b4)
    _put(sums[5], first, a5, b5)


@compiled
def _taps(weights, biases, height, width):
    """Weights and biases of six channels at a time, and each tap's offset in the padded image."""
    outs, ins, rows, columns = weights.shape
    tiles = -(-outs // _CHANNELS)
    taps = np.zeros((tiles, ins * rows * columns, _CHANNELS), np.float32)
    added = np.zeros((tiles, _CHANNELS), np.float32)
    offsets = np.empty(ins * rows * columns, np.int64)
    tap = 0
    for c in range(ins):
        for i in range(rows):
            for j in range(columns):
                offsets[tap] = (c * height + i) * width + j
                for o in range(outs):
                    taps[o // _CHANNELS, tap, o % _CHANNELS] = weights[o, c, i, j]
                tap += 1
    for o in range(outs):
        added[o // _CHANNELS, o % _CHANNELS] = biases[o]
    return offsets, taps, added


@compiled
def _pool(sums, width, window, best, positions, maxima, winners):
    """The maxima of one channel's windows and where they are; NaN counts as the largest."""
    height, across, down, right = window
    rows, columns = maxima.shape
    for i in range(rows):
        start = i * down * width
        for x in range(0, (columns - 1) * right + 1, WIDTH):
            most, place = load(sums, start + x), counted(_F(start + x))
            for a in range(height):
                for b in range(across):
                    shift = start + x + a * width + b
                    new = load(sums, shift)
                    place = where_larger(new, most, counted(_F(shift)), place)
                    most = where_larger(new, most, new, most)
            store(best, x, most)
            store(positions, x, place)
        for j in range(columns):
            maxima[i, j] = best[j * right]
            winners[i, j] = np.int32(positions[j * right])


@compiled
def pooled_convolutions(inputs, rows, weights, biases, padding, window, relu, maxima, winners):
    """Convolves records, takes the maximum of every window, and applies the ReLU.

    Args:
        inputs: float32, shape (records, channels in, H, W).
        rows: int64, shape (n,), the records to take.
        weights: float32, shape (channels out, channels in, kernel height, kernel width).
        biases: float32, shape (channels out,).
        padding: zeros on each side, (vertical, horizontal).
        window: of the pooling: (height, width, vertical stride, horizontal stride).
        relu: whether a ReLU follows or precedes the pooling.
        maxima: float32, shape (n, channels out, ...), is overwritten with the results.
        winners: int32, in the shape of `maxima`, is overwritten with the position of each maximum:
            row times padded width plus column.
    """
    outs, ins, kernel_height, kernel_width = weights.shape
    height, width = inputs.shape[2] + 2 * padding[0], inputs.shape[3] + 2 * padding[1]
    offsets, taps, added = _taps(weights, biases, height, width)
    num_positions = (height - kernel_height) * width + width - kernel_width + 1
    length = -(-num_positions // _POSITIONS) * _POSITIONS
    image = np.zeros(ins * height * width + _POSITIONS, np.float32)
    sums = np.empty((_CHANNELS, length + WIDTH), np.float32)
    best, at = np.empty(width + WIDTH, np.float32), np.empty(width + WIDTH, np.float32)
    inner = image[: ins * height * width].reshape(ins, height, width)
    for r in range(len(rows)):
        inner[:, padding[0] : height - padding[0], padding[1] : width - padding[1]] = inputs[
            rows[r]
        ]
        for tile in range(len(taps)):
            for first in range(0, length, _POSITIONS):
                _tile(image, offsets, taps[tile], added[tile], first, sums)
            for o in range(tile * _CHANNELS, min(outs, (tile + 1) * _CHANNELS)):
                of_channel = maxima[r, o]
                _pool(sums[o % _CHANNELS], width, window, best, at, of_channel, winners[r, o])
        if relu:
            flat = maxima[r].reshape(maxima[r].size)
            for k in range(len(flat)):
                flat[k] = _F(0) if flat[k] < _F(0) else flat[k]


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
