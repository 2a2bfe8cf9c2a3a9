"""Philox4x32-10 on the host: noise and batches as a pure function of where they are used.

A counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)
turns a key and a counter into four random words. The key is the audit's seed; the counter is
(block of four positions, step, run, purpose). So any draw can be made alone, in any order and on
any device, and no two draws of an audit share their randomness.

Position p of n is word p div ceil(n / 4) of block p mod ceil(n / 4). Each quarter of a row is then
contiguous, so the compiler can use vector instructions. Pairs of words become pairs of normals (Box
and Muller, 1958). The logarithm and sine are polynomials of Cephes (Moshier), accurate to about
1e-7, because library calls would not vectorise.

The functions take an array `out` with a row for each run, the key, uint32, shape (2,), the step and
the purpose of the draws, and the runs' indices, int64, shape (runs,).
"""

import math

import numba
import numpy as np

from dpcanary.training.kernels.lanes import as_bits, as_float

_U, _U64, _I, _F = np.uint32, np.uint64, np.int32, np.float32
_MULTIPLIER_0, _MULTIPLIER_1 = _U64(0xD2511F53), _U64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = _U(0x9E3779B9), _U(0xBB67AE85)
_WORD = _U64(32)
_HALF_SQRT2_BITS = _U(0x3F3504F3)  # of float32 sqrt(1/2)
_ANGLE = _F(math.pi / 2 * 2.0**-31)


@numba.njit(inline="always")
def words(c0, c1, c2, c3, k0, k1):
    """Four random words from a counter (c0, c1, c2, c3) and a key (k0, k1)."""
    for _ in range(10):
        p0 = _U64(c0) * _MULTIPLIER_0
        p1 = _U64(c2) * _MULTIPLIER_1
        c0 = _U(_U(p1 >> _WORD) ^ c1 ^ k0)
        c2 = _U(_U(p0 >> _WORD) ^ c3 ^ k1)
        c1, c3 = _U(p1), _U(p0)
        k0, k1 = _U(k0 + _WEYL_0), _U(k1 + _WEYL_1)
    return c0, c1, c2, c3


@numba.njit(inline="always", fastmath=True)
def _log(x):
    """Natural logarithm of a normal float32 in (0, 1]."""
    bits = as_bits(x)
    exponent = _I(_U(bits - _HALF_SQRT2_BITS)) >> _I(23)
    f = as_float(_U(bits - _U(exponent << _I(23)))) - _F(1.0)  # mantissa - 1, near 0
    e = _F(exponent)
    y = _F(7.0376836292e-2)
    y = y * f + _F(-1.1514610310e-1)
    y = y * f + _F(1.1676998740e-1)
    y = y * f + _F(-1.2420140846e-1)
    y = y * f + _F(1.4249322787e-1)
    y = y * f + _F(-1.6668057665e-1)
    y = y * f + _F(2.0000714765e-1)
    y = y * f + _F(-2.4999993993e-1)
    y = y * f + _F(3.3333331174e-1)
    square = f * f
    return f + (y * f * square - _F(0.5) * square + e * _F(-2.12194440e-4)) + e * _F(0.693359375)


@numba.njit(inline="always", fastmath=True)
def _normals(a, b):
    """Two standard normals from two words; at most 6.7 in size."""
    uniform = (_F(_I(a >> _U(1))) + _F(0.5)) * _F(2.0**-31)
    radius = math.sqrt(_F(-2.0) * _log(uniform))
    # Thirty bits give an angle between -pi/4 and pi/4; the other two give the quadrant.
    # Numba widens shifts to 64 bits: without the cast, the two top bits would stay.
    t = (_F(_I(_U(b << _U(2)) >> _U(1))) - _F(2.0**30)) * _ANGLE
    s = t * t
    sine = ((_F(-1.9515295891e-4) * s + _F(8.3321608736e-3)) * s + _F(-1.6666654611e-1)) * s * t + t
    cosine = (_F(2.443315711809948e-5) * s + _F(-1.388731625493765e-3)) * s
    cosine = (cosine + _F(4.166664568298827e-2)) * s * s - _F(0.5) * s + _F(1.0)
    turned = (b >> _U(30)) & _U(1)
    signed = as_float(as_bits(_F(radius)) | ((b >> _U(31)) << _U(31)))
    return signed * (sine if turned else cosine), signed * (cosine if turned else sine)


@numba.njit(nogil=True, fastmath=True, cache=True)
def add_normals(out, factor, scale, key, step, runs, purpose):
    """Replaces `out`, float32, rows contiguous, by factor * out + scale * standard normals.

    `factor` and `scale` are float32.
    """
    width = out.shape[1]
    blocks = (width + 3) // 4
    full = width - 3 * blocks  # blocks that use all four words; may be negative for width < 3
    k0, k1, c1, c3 = key[0], key[1], _U(step), _U(purpose)
    for index in range(len(runs)):
        run = _U(runs[index])
        row = out[index]
        q0, q1, q2 = row[:blocks], row[blocks : 2 * blocks], row[2 * blocks : 3 * blocks]
        q3 = row[3 * blocks :]
        for i in range(full):
            w0, w1, w2, w3 = words(_U(i), c1, run, c3, k0, k1)
            n0, n1 = _normals(w0, w1)
            n2, n3 = _normals(w2, w3)
            q0[i] = factor * q0[i] + scale * n0
            q1[i] = factor * q1[i] + scale * n1
            q2[i] = factor * q2[i] + scale * n2
            q3[i] = factor * q3[i] + scale * n3
        for i in range(max(full, 0), blocks):
            w0, w1, w2, w3 = words(_U(i), c1, run, c3, k0, k1)
            n0, n1 = _normals(w0, w1)
            n2, n3 = _normals(w2, w3)
            q0[i] = factor * q0[i] + scale * n0
            if i < len(q1):
                q1[i] = factor * q1[i] + scale * n1
            if i < len(q2):
                q2[i] = factor * q2[i] + scale * n2


@numba.njit(inline="always")
def _fill_words(out, key, step, run, purpose):
    """Fills a uint32 vector, whose length is a multiple of 4, with random words."""
    blocks = len(out) // 4
    q0, q1 = out[:blocks], out[blocks : 2 * blocks]
    q2, q3 = out[2 * blocks : 3 * blocks], out[3 * blocks :]
    for i in range(blocks):
        w0, w1, w2, w3 = words(_U(i), _U(step), _U(run), _U(purpose), key[0], key[1])
        q0[i] = w0
        q1[i] = w1
        q2[i] = w2
        q3[i] = w3


@numba.njit(nogil=True, cache=True)
def random_words(out, key, step, runs, purpose):
    """Fills `out`, uint32, with random words."""
    width = out.shape[1]
    drawn = np.empty((width + 3) // 4 * 4, np.uint32)
    for index in range(len(runs)):
        _fill_words(drawn, key, step, runs[index], purpose)
        out[index] = drawn[:width]


@numba.njit(nogil=True, cache=True)
def sample_mask(out, threshold, key, step, runs, purpose):
    """Poisson samples as weights: sets `out`, float32, shape (runs, records), to 0 or 1.

    A record is sampled if its word is below the threshold, uint64, at most 2^32.
    """
    num_records = out.shape[1]
    drawn = np.empty((num_records + 3) // 4 * 4, np.uint32)
    for index in range(len(runs)):
        _fill_words(drawn, key, step, runs[index], purpose)
        for record in range(num_records):
            out[index, record] = _F(_U64(drawn[record]) < threshold)


@numba.njit(nogil=True, cache=True)
def sample_rows(
    out, sampled, slots, replacements, null, num_records, threshold, key, step, runs, purpose
):
    """Poisson samples as lists of rows, each filled up with the null row.

    Args:
        out: int64, shape (runs, capacity).
        sampled: float32, shape (runs, K); overwritten by 1 where a slot's target is sampled, else
            by 0.
        slots: int64, shape (records,): the slot whose target a record is, or -1.
        replacements: int64, shape (runs, K): the row that replaces the target, or -1 for none.
        null: the row that fills up the lists.
        num_records: samples are drawn from records 0, ..., num_records - 1.
        threshold: as in `sample_mask`.
        key: see the module, as for the rest.
        step: of the draws.
        runs: their indices.
        purpose: of the draws.

    Returns:
        The size of the largest sample. Where it exceeds the capacity, `out` is incomplete.
    """
    capacity = out.shape[1]
    drawn = np.empty((num_records + 3) // 4 * 4, np.uint32)
    largest = 0
    for index in range(len(runs)):
        _fill_words(drawn, key, step, runs[index], purpose)
        rows = out[index]
        count = 0
        for record in range(num_records):
            if count < capacity:
                rows[count] = record  # overwritten unless the count grows
            count += _U64(drawn[record]) < threshold
        largest = max(largest, count)
        if count > capacity:
            continue
        sampled[index] = _F(0)
        # From the end, so that the row moved into a removed place has been handled already.
        for place in range(count - 1, -1, -1):
            slot = slots[rows[place]]
            if slot < 0:
                continue
            sampled[index, slot] = _F(1)
            if replacements[index, slot] >= 0:
                rows[place] = replacements[index, slot]
            else:
                count -= 1
                rows[place] = rows[count]
        rows[count:] = null
    return largest
