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
def _pool(sums, width, window, best, places, maxima, winners):
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
            store(places, x, place)
        for j in range(columns):
            maxima[i, j] = best[j * right]
            winners[i, j] = np.int32(places[j * right])


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
    places = (height - kernel_height) * width + width - kernel_width + 1
    length = -(-places // _POSITIONS) * _POSITIONS
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
