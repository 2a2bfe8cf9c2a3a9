"""The statistics of simulated scores, compiled; `simulated_nulls` has them in NumPy."""

import numba
import numpy as np
from numpy.typing import NDArray

from dpcanary.estimation.families import LOWEST, NUM_POINTS, STEP

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@numba.njit(cache=True, nogil=True)
def statistics_of_pairs(
    normals0: Floats,
    normals1: Floats,
    counts0: Counts,
    counts1: Counts,
    curves: Floats,
    scans: Floats,
    out: NDArray[np.float32],
) -> None:
    """As `simulated_nulls.statistics_of_pairs`, in one pass over the scores."""
    y = np.empty(normals1.shape[1])
    for sample in range(len(normals0)):
        cells, parts = _grid_positions(normals1[sample])
        for g in range(len(curves)):
            _move(curves[g], cells, parts, y)
            _statistics(normals0[sample], y, counts0, counts1, scans, out[:, sample, g])


@numba.njit(cache=True, nogil=True)
def _grid_positions(normals):
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
def _statistics(x, y, counts0, counts1, scans, out):
    """One merge of both worlds, where they overlap. Both are sorted."""
    n0, n1 = len(x), len(y)  # of the distinct scores
    first = np.searchsorted(x, y[0], side="right")  # beats a score of world 1
    last = np.searchsorted(x, y[n1 - 1], side="right")  # beats all
    losses = counts0[first] * counts1[n1]
    out[:-1] = -np.inf
    if first > 0:  # of the thresholds below world 1, the lowest has the fewest false negatives
        _scan(scans, n1, 0, out)
    beaten = np.searchsorted(y, x[first], side="left") if first < n0 else 0
    evaluated = -1
    for i in range(first, min(last + 1, n0)):
        while beaten < n1 and y[beaten] < x[i]:
            beaten += 1
        losses += (counts0[i + 1] - counts0[i]) * counts1[n1 - beaten]
        if beaten > evaluated:  # else the threshold before has fewer false negatives
            evaluated = beaten
            _scan(scans, n1 - beaten, i, out)
    out[-1] = losses / (counts0[n0] * counts1[n1])


@numba.njit(cache=True, nogil=True, inline="always")
def _scan(scans, false_positives, false_negatives, out):
    """Raises the largest strength of each scan to that of one threshold."""
    for s in range(len(scans)):
        of_first = scans[s, 0, false_positives] + scans[s, 1, false_negatives]
        of_second = scans[s, 2, false_positives] + scans[s, 3, false_negatives]
        out[s] = max(out[s], of_first, of_second)
