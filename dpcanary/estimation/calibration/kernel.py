"""Test statistics of many pairs of simulated samples, compiled.

A statistic looks at the scores only through comparisons, so world 1 is drawn once on a normal scale
and moved by each curve in turn.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from dpcanary.estimation.families import LOWEST, NUM_POINTS, STEP

Floats = NDArray[np.float64]


@numba.njit(cache=True, nogil=True)
def statistics_of_pairs(
    normals0: Floats, normals1: Floats, curves: Floats, scans: Floats, out: NDArray[np.float32]
) -> None:
    """Fills in the statistics of every sample under every curve.

    Args:
        normals0: shape (B, n0), sorted in each row.
        normals1: shape (B, n1), sorted in each row.
        curves: shape (G, NUM_POINTS); world-1 scores as a function of the normals, see `Family`.
        scans: shape (S, 4, max(n0, n1) + 1); see `scan_terms`.
        out: shape (S + 1, B, G): the largest strength of each scan, then 1 - AUC, the share of
            pairs in which world 1 has the higher score.
    """
    y = np.empty(normals1.shape[1])
    for sample in range(len(normals0)):
        cells, parts = _places(normals1[sample])
        for g in range(len(curves)):
            _move(curves[g], cells, parts, y)
            _statistics(normals0[sample], y, scans, out[:, sample, g])


@numba.njit(cache=True, nogil=True)
def _places(normals):
    """The grid's cell of every normal, and where in the cell it is, from 0 to 1."""
    cells, parts = np.empty(len(normals), np.int64), np.empty(len(normals))
    for j in range(len(normals)):
        place = min(max((normals[j] - LOWEST) / STEP, 0.0), NUM_POINTS - 1.000001)
        cells[j] = int(place)
        parts[j] = place - cells[j]
    return cells, parts


@numba.njit(cache=True, nogil=True)
def _move(curve, cells, parts, y):
    for j in range(len(y)):
        low = curve[cells[j]]
        y[j] = low + parts[j] * (curve[cells[j] + 1] - low)


@numba.njit(cache=True, nogil=True)
def _statistics(x, y, scans, out):
    """One merge of both worlds, where they overlap. Both are sorted."""
    n0, n1 = len(x), len(y)
    first = np.searchsorted(x, y[0], side="right")  # beats a score of world 1
    last = np.searchsorted(x, y[n1 - 1], side="right")  # beats all
    losses = first * n1
    out[:-1] = -np.inf
    if first > 0:  # of the thresholds below world 1, the lowest has the fewest false negatives
        _scan(scans, n1, 0, out)
    beaten = np.searchsorted(y, x[first], side="left") if first < n0 else 0
    evaluated = -1
    for i in range(first, min(last + 1, n0)):
        while beaten < n1 and y[beaten] < x[i]:
            beaten += 1
        losses += n1 - beaten
        if beaten > evaluated:  # else the threshold before has fewer false negatives
            evaluated = beaten
            _scan(scans, n1 - beaten, i, out)
    out[-1] = losses / (n0 * n1)


@numba.njit(cache=True, nogil=True, inline="always")
def _scan(scans, false_positives, false_negatives, out):
    """Raises the largest strength of each scan to that of one threshold."""
    for s in range(len(scans)):
        one = scans[s, 0, false_positives] + scans[s, 1, false_negatives]
        other = scans[s, 2, false_positives] + scans[s, 3, false_negatives]
        out[s] = max(out[s], one, other)
