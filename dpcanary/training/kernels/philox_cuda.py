"""Philox4x32-10 on a CUDA device: the words of `kernels.philox`, drawn where they are used.

Key, counter and row layout are the host's, so a run can be repeated on another device: the words
are the same bit for bit, the normals to about 1e-6. The logarithm, sine and cosine are the host's
polynomials, because the device's fast logarithm is inaccurate near 1.

A program draws a tile of blocks of one run. The four words of a block go to the four quarters of
the run's row. The grid has one axis, because only the first axis may exceed 65535. Memory offsets
are 64-bit numbers, because a single row may exceed 2^31 elements.

Nothing here waits for the device. Do not capture it in a CUDA graph: the graph would repeat the
draws of the captured step.
"""

import math

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.training.training_settings import Purpose

_MULTIPLIER_0, _MULTIPLIER_1 = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
_WEYL_0, _WEYL_1 = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)
_HALF_SQRT2_BITS = tl.constexpr(0x3F3504F3)  # of float32 sqrt(1/2)
_ANGLE = tl.constexpr(math.pi / 2 * 2.0**-31)
_SIGN = tl.constexpr(0x80000000)

_LARGEST_TILE = 512  # blocks of a program
_PER_THREAD = 4  # blocks of a thread
# Arguments that Triton must not specialise. It would compile one kernel for multiples of 16, one
# for 1 and one for other values, and so compile again in the middle of a training.
_VARYING = ["width", "tiles", "threshold", "key_0", "key_1", "step", "purpose"]


def add_normals(
    out: Tensor,
    *,
    factor: float,
    scale: float,
    key: NDArray[np.uint32],
    step: int,
    runs: Tensor,
    purpose: Purpose,
) -> None:
    """See `philox.add_normals`; `out` is contiguous, and `runs` are on its device."""
    _launch(_add_normals, out, runs, (factor, scale), key, step, purpose)


def sample_mask(
    out: Tensor,
    *,
    threshold: int,
    key: NDArray[np.uint32],
    step: int,
    runs: Tensor,
    purpose: Purpose,
) -> None:
    """See `philox.sample_mask`; `out` is contiguous, and `runs` are on its device."""
    _launch(_sample_mask, out, runs, (threshold,), key, step, purpose)


def _launch(kernel, out, runs, numbers, key, step, purpose):
    """Starts a kernel for all tiles of all runs; `numbers` are the kernel's own arguments."""
    assert (out.dtype, runs.dtype) == (torch.float32, torch.int64)
    assert out.is_contiguous(), "rows must follow each other without gaps"
    assert runs.is_contiguous()
    assert runs.device == out.device
    num_runs, width = out.shape
    assert runs.shape == (num_runs,)
    blocks = -(-width // 4)
    tile = min(max(triton.next_power_of_2(blocks), 32), _LARGEST_TILE)
    tiles = -(-blocks // tile)
    counter = (int(key[0]), int(key[1]), step, purpose.value)
    num_warps = max(tile // (32 * _PER_THREAD), 1)
    with torch.cuda.device_of(out):  # kernels start on the current device, which may be another
        kernel[(num_runs * tiles,)](
            out, runs, *numbers, width, tiles, *counter, tile=tile, num_warps=num_warps
        )


@triton.jit
def _words(c0, c1, c2, c3, k0, k1):
    """Four random words from a counter (c0, c1, c2, c3) and a key (k0, k1), all uint32."""
    for _ in tl.static_range(10):
        # One wide product is one instruction; computing its two halves would take two.
        p0 = c0.to(tl.uint64) * _MULTIPLIER_0
        p1 = c2.to(tl.uint64) * _MULTIPLIER_1
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = p1.to(tl.uint32), p0.to(tl.uint32)
        k0, k1 = k0 + _WEYL_0, k1 + _WEYL_1
    return c0, c1, c2, c3


@triton.jit
def _log(x):
    """Natural logarithm of a normal float32 in (0, 1]."""
    bits = x.to(tl.uint32, bitcast=True)
    exponent = (bits - _HALF_SQRT2_BITS).to(tl.int32) >> 23
    f = (bits - (exponent << 23).to(tl.uint32)).to(tl.float32, bitcast=True) - 1.0
    e = exponent.to(tl.float32)
    y = f * 7.0376836292e-2 + -1.1514610310e-1
    y = y * f + 1.1676998740e-1
    y = y * f + -1.2420140846e-1
    y = y * f + 1.4249322787e-1
    y = y * f + -1.6668057665e-1
    y = y * f + 2.0000714765e-1
    y = y * f + -2.4999993993e-1
    y = y * f + 3.3333331174e-1
    square = f * f
    return f + (y * f * square - 0.5 * square + e * -2.12194440e-4) + e * 0.693359375


@triton.jit
def _normals(a, b):
    """Two standard normals from two words; at most 6.7 in size."""
    uniform = ((a >> 1).to(tl.int32).to(tl.float32) + 0.5) * 2.0**-31
    radius = tl.sqrt(-2.0 * _log(uniform))
    # Thirty bits give an angle between -pi/4 and pi/4; the other two give the quadrant.
    t = (((b << 2) >> 1).to(tl.int32).to(tl.float32) - 2.0**30) * _ANGLE
    s = t * t
    sine = ((s * -1.9515295891e-4 + 8.3321608736e-3) * s + -1.6666654611e-1) * s * t + t
    cosine = (s * 2.443315711809948e-5 + -1.388731625493765e-3) * s
    cosine = (cosine + 4.166664568298827e-2) * s * s - 0.5 * s + 1.0
    turned = ((b >> 30) & 1) != 0
    signed = (radius.to(tl.uint32, bitcast=True) | (b & _SIGN)).to(tl.float32, bitcast=True)
    return signed * tl.where(turned, sine, cosine), signed * tl.where(turned, cosine, sine)


@triton.jit
def _draw(out, runs, width, tiles, key_0, key_1, step, purpose, tile: tl.constexpr):
    """The words of this program's tile, shape (tile,) each, and where they go.

    That is a pointer to the tile in the row's first quarter; the blocks from there to the quarter's
    end, and the elements to the row's; and the blocks of a row.
    """
    program = tl.program_id(0)
    row = (program // tiles).to(tl.int64)
    start = (program % tiles).to(tl.int64) * tile
    blocks = (width.to(tl.int64) + 3) // 4
    run = tl.load(runs + row).to(tl.uint32)
    block = start.to(tl.uint32) + tl.arange(0, tile).to(tl.uint32)
    step, purpose = step.to(tl.uint32), purpose.to(tl.uint32)
    key_0, key_1 = key_0.to(tl.uint32), key_1.to(tl.uint32)
    w0, w1, w2, w3 = _words(block, step, run, purpose, key_0, key_1)
    return w0, w1, w2, w3, out + row * width + start, blocks - start, width - start, blocks


@triton.jit
def _inside(left, rest, tile: tl.constexpr):
    """Which elements of a tile lie in its quarter (`left` more) and in the row (`rest` more)."""
    return tl.arange(0, tile) < tl.minimum(tl.minimum(left, rest), tile).to(tl.int32)


@triton.jit
def _add(start, left, rest, normals, factor, scale, tile: tl.constexpr):
    """Adds normals to a tile of a quarter."""
    inside = _inside(left, rest, tile)
    addresses = start + tl.arange(0, tile)
    there = tl.load(addresses, mask=inside)
    tl.store(addresses, factor * there + scale * normals, mask=inside)


@triton.jit(do_not_specialize=_VARYING)
def _add_normals(
    out,
    runs,
    factor: tl.float32,
    scale: tl.float32,
    width: tl.int64,
    tiles: tl.int32,
    key_0: tl.uint32,
    key_1: tl.uint32,
    step: tl.uint32,
    purpose: tl.uint32,
    tile: tl.constexpr,
):
    """One program of `add_normals`."""
    w0, w1, w2, w3, first, left, rest, blocks = _draw(
        out, runs, width, tiles, key_0, key_1, step, purpose, tile
    )
    n0, n1 = _normals(w0, w1)
    n2, n3 = _normals(w2, w3)
    _add(first, left, rest, n0, factor, scale, tile)
    _add(first + blocks, left, rest - blocks, n1, factor, scale, tile)
    _add(first + 2 * blocks, left, rest - 2 * blocks, n2, factor, scale, tile)
    _add(first + 3 * blocks, left, rest - 3 * blocks, n3, factor, scale, tile)


@triton.jit
def _mark(start, left, rest, words, threshold, tile: tl.constexpr):
    """Writes which records of a tile of a quarter are sampled."""
    sampled = (words.to(tl.int64) < threshold).to(tl.float32)
    tl.store(start + tl.arange(0, tile), sampled, mask=_inside(left, rest, tile))


@triton.jit(do_not_specialize=_VARYING)
def _sample_mask(
    out,
    runs,
    threshold: tl.int64,
    width: tl.int64,
    tiles: tl.int32,
    key_0: tl.uint32,
    key_1: tl.uint32,
    step: tl.uint32,
    purpose: tl.uint32,
    tile: tl.constexpr,
):
    """One program of `sample_mask`."""
    w0, w1, w2, w3, first, left, rest, blocks = _draw(
        out, runs, width, tiles, key_0, key_1, step, purpose, tile
    )
    _mark(first, left, rest, w0, threshold, tile)
    _mark(first + blocks, left, rest - blocks, w1, threshold, tile)
    _mark(first + 2 * blocks, left, rest - 2 * blocks, w2, threshold, tile)
    _mark(first + 3 * blocks, left, rest - 3 * blocks, w3, threshold, tile)
