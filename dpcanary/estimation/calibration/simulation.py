"""Simulates test statistics at the least favourable pairs of a family."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import numba
import numpy as np
from numpy.typing import NDArray

from dpcanary.estimation.calibration.statistics import (
    FEW_SCORES,
    SHARES,
    SPARSE_SHARE,
    NullTable,
    components_of,
    make_null_table,
    on_normal_scale,
    scan_terms,
)
from dpcanary.estimation.families import LOWEST, NUM_POINTS, STEP, Family

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
        out: shape (S + 1, B, G): the largest strength of each scan, then 1 - AUC.
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


Sizes = tuple[int, int]

# Normals that one job draws; a job's draws depend on its number alone, never on the cores.
_NORMALS_PER_JOB = 2_000_000


def simulate_statistics(
    *,
    curves: Floats,
    looks: Sequence[Sizes],
    scans: Sequence[Floats],
    num_samples: int,
    seed: int,
    on_progress: Callable[[int], object] = lambda samples: None,
) -> NDArray[np.float32]:
    """The statistics of B simulated audits at each of G curves.

    The same draws are used for all curves and looks, as in the argument by coupling: an audit's
    statistics do not decrease from one curve of the family to the next.

    Args:
        curves: shape (G, points); see `Family.curves`.
        looks: numbers of scores of world 0 and world 1 at each look, not decreasing. A look sees
            the first scores.
        scans: for each look the terms of its scans, shape (S, 4, points).
        num_samples: B.
        seed: of the draws.
        on_progress: called with the number of samples just done.

    Returns:
        Shape (looks, S + 1, B, G): the largest strength of each scan, then 1 - AUC.
    """
    shape = (len(looks), len(scans[0]) + 1, num_samples, len(curves))
    out = np.empty(shape, np.float32)
    per_job = max(1, _NORMALS_PER_JOB // sum(looks[-1]))

    def job(start: int) -> int:
        count = min(per_job, num_samples - start)
        rng = np.random.default_rng([seed, start // per_job])
        world0, world1 = (rng.standard_normal((count, size)) for size in looks[-1])
        for look, (n0, n1) in enumerate(looks):
            statistics_of_pairs(
                np.sort(world0[:, :n0], axis=1),
                np.sort(world1[:, :n1], axis=1),
                curves,
                scans[look],
                out[look, :, start : start + count],
            )
        return count

    with ThreadPoolExecutor(_num_cores()) as pool:
        jobs = [pool.submit(job, start) for start in range(0, num_samples, per_job)]
        for done in as_completed(jobs):
            on_progress(done.result())
    return out


def _num_cores() -> int:
    """The cores that this process may use; a cluster's job has fewer than the machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


_SEED = 20_261_122
_END_SAMPLES = 200_000
_MOST_SAMPLES, _FEWEST_SAMPLES, _SCORES = 40_000, 10_000, 100_000_000
# Samples that exceed a critical value, at least.
_FEWEST_BEYOND = 20


def default_num_samples(looks: Sequence[Sizes], significance: float) -> int:
    """Samples that keep both the time and the error of the critical values small."""
    wanted = _SCORES // sum(sum(sizes) for sizes in looks)
    enough = int(_FEWEST_BEYOND / significance)
    return max(min(wanted, _MOST_SAMPLES), _FEWEST_SAMPLES, enough)


def compute_null_table(
    *,
    family: Family,
    looks: Sequence[Sizes],
    significance: float,
    num_samples: int,
    on_progress: Callable[[int], object] = lambda samples: None,
) -> NullTable:
    """Simulates the statistics along the family and takes their critical values."""
    ends = np.array([_largest_theta(family, sizes, significance) for sizes in looks])
    thetas = SHARES * ends.max()
    terms = [scan_terms(family=family, sizes=sizes, significance=significance) for sizes in looks]
    statistics = simulate_statistics(
        curves=family.curves(thetas),
        looks=looks,
        scans=terms,
        num_samples=num_samples,
        seed=_SEED,
        on_progress=on_progress,
    )
    for of_look, (n0, n1) in zip(statistics, looks, strict=True):
        on_normal_scale(of_look, n0 * n1)
    few = np.array([min(sizes) < FEW_SCORES for sizes in looks])
    return make_null_table(
        thetas=thetas,
        statistics=statistics,
        components=components_of(family),
        significance=significance,
        sparse_from=np.where(few, 0.0, SPARSE_SHARE * ends),
    )


def _largest_theta(family: Family, sizes: Sizes, significance: float) -> float:
    """About the largest bound that so many scores can give: that of separate worlds.

    If all scores of world 0 are above those of world 1, every theta is rejected at which this has a
    probability of at most the significance.
    """
    rng = np.random.default_rng([_SEED, *sizes])
    fnr, fpr = (rng.beta(1, n, _END_SAMPLES) for n in sizes)
    theta = float(np.quantile(family.strength(fpr, fnr), significance))
    return min(1.01 * max(theta, 0.1), family.largest)
