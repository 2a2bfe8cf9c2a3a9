"""Simulates test statistics at the least favourable pairs of a family."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpcanary.core.optional_packages import is_installed
from dpcanary.estimation.error_rates import MOST_DISTINCT, distinct_counts
from dpcanary.estimation.families import LOWEST, NUM_POINTS, STEP, Family
from dpcanary.estimation.null_distributions.statistics import (
    FEW_SCORES,
    SHARES,
    SPARSE_SHARE,
    NullTable,
    components_of,
    make_null_table,
    on_normal_scale,
    scan_terms,
)

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# Scores that are compared at once: they and what is made of them stay in the core's cache.
_AT_ONCE = 20_000


def statistics_of_pairs(
    normals0: Floats,
    normals1: Floats,
    counts0: Counts,
    counts1: Counts,
    curves: Floats,
    scans: Floats,
    out: NDArray[np.float32],
) -> None:
    """Fills in the statistics of every sample under every curve.

    Args:
        normals0: shape (B, len(counts0) - 1), sorted in each row: the scores of world 0 that have
            as many scores of their world below them as the counts say.
        normals1: shape (B, len(counts1) - 1), sorted in each row: those of world 1 that have as
            many scores of their world above them.
        counts0: see `distinct_counts`.
        counts1: those of world 1.
        curves: shape (G, NUM_POINTS); world-1 scores as a function of the normals, see `Family`.
        scans: shape (S, 4, points); see `scan_terms`.
        out: shape (S + 1, B, G): the largest strength of each scan, then 1 - AUC.
    """
    num0, num1 = normals0.shape[1], normals1.shape[1]  # of the distinct scores
    # Below the score of world 1 that is in place j lie so many of world 0, and a threshold at the
    # next of these has num1 - 1 - j false positives. There is none above all scores of world 0.
    of_positives = scans[:, 0::2, :num1][..., ::-1]
    of_negatives = scans[:, 1::2, : num0 + 1].copy()
    of_negatives[..., num0] = -np.inf
    below_all = (scans[:, 0::2, num1] + scans[:, 1::2, 0]).max(axis=1)
    weights, num_pairs = np.diff(counts1)[::-1], counts0[num0] * counts1[num1]
    starts = np.ascontiguousarray(curves.T)
    steps = np.diff(starts, axis=0)
    grid_positions = np.clip((normals1 - LOWEST) / STEP, 0.0, NUM_POINTS - 1.000001)
    cells = grid_positions.astype(np.int64)
    parts = grid_positions - cells
    at_once = max(1, _AT_ONCE // len(curves))
    blocks = [slice(start, start + at_once) for start in range(0, num1, at_once)]
    for sample, (x, cell, part) in enumerate(zip(normals0, cells, parts, strict=True)):
        lowest = np.searchsorted(x, starts[cell[0]] + part[0] * steps[cell[0]], side="right")
        best = np.where(lowest > 0, below_all[:, None], -np.inf)
        lost = np.zeros(len(lowest), np.int64)
        for j in blocks:
            y = starts[cell[j]] + part[j, None] * steps[cell[j]]
            negatives = np.searchsorted(x, y.ravel(), side="right").reshape(y.shape)
            for of_scan, of_positive, of_negative in zip(
                best, of_positives, of_negatives, strict=True
            ):
                for positive, negative in zip(of_positive, of_negative, strict=True):
                    strengths = negative[negatives]
                    strengths += positive[j, None]
                    np.maximum(of_scan, strengths.max(axis=0), out=of_scan)
            lost += weights[j] @ counts0[negatives]
        out[:-1, sample] = best
        out[-1, sample] = lost / num_pairs


def _fastest() -> Callable[..., None]:
    """Fills in statistics as `statistics_of_pairs`: compiled where Numba is installed.

    The numbers are the same. NumPy takes three to six times as long.
    """
    if not is_installed("numba"):
        return statistics_of_pairs
    from dpcanary.estimation.null_distributions import compiled_statistics as compiled

    return compiled.statistics_of_pairs  # type: ignore[no-any-return]


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
    distinct = [[distinct_counts(size) for size in sizes] for sizes in looks]
    draws_kept = len(looks) == 1 and max(looks[0]) > MOST_DISTINCT
    drawn = sum(map(len, distinct[0])) if draws_kept else sum(looks[-1])
    per_job = max(1, _NORMALS_PER_JOB // drawn)

    fill_in = _fastest()

    def job(start: int) -> int:
        count = min(per_job, num_samples - start)
        rng = np.random.default_rng([seed, start // per_job])
        if draws_kept:
            drawn0, drawn1 = (
                _order_statistics(rng, count, ranks, size)
                for ranks, size in zip(_ranks(looks[0]), looks[0], strict=True)
            )
            ordered = [(drawn0, drawn1)]
        else:
            drawn0, drawn1 = (rng.standard_normal((count, size)) for size in looks[-1])
            ordered = [_sorted(drawn0, drawn1, sizes) for sizes in looks]
        for look, (counts, worlds) in enumerate(zip(distinct, ordered, strict=True)):
            done = out[look, :, start : start + count]
            fill_in(*worlds, *counts, curves, scans[look], done)
        return count

    with ThreadPoolExecutor(_num_cores()) as pool:
        jobs = [pool.submit(job, start) for start in range(0, num_samples, per_job)]
        for done in as_completed(jobs):
            on_progress(done.result())
    return out


def _ranks(sizes: Sizes) -> tuple[Counts, Counts]:
    """The ranks, from 1, of the distinct scores of each world."""
    n0, n1 = sizes
    return distinct_counts(n0)[:-1] + 1, n1 - distinct_counts(n1)[-2::-1]


def _sorted(world0: Floats, world1: Floats, sizes: Sizes) -> tuple[Floats, Floats]:
    """The first normals of each world, sorted in each row: those of distinct scores."""
    kept = zip((world0, world1), sizes, _ranks(sizes), strict=True)
    ordered = [(np.sort(world[:, :size], axis=1), ranks) for world, size, ranks in kept]
    first, second = (
        world if len(ranks) == world.shape[1] else np.ascontiguousarray(world[:, ranks - 1])
        for world, ranks in ordered
    )
    return first, second


def _order_statistics(rng: np.random.Generator, count: int, ranks: Counts, size: int) -> Floats:
    """Normals of these ranks among `size` sorted ones, without drawing the others.

    The gaps of sorted uniforms are those of a Poisson process: shares of exponentials' sum.
    """
    gaps = np.diff(ranks, prepend=0, append=size + 1).astype(np.float64)
    sums = np.cumsum(rng.standard_gamma(gaps, size=(count, len(gaps))), axis=1)
    return np.asarray(ndtri(sums[:, :-1] / sums[:, -1:]))


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
    affordable = _SCORES // sum(sum(sizes) for sizes in looks)
    enough = int(_FEWEST_BEYOND / significance)
    return max(min(affordable, _MOST_SAMPLES), _FEWEST_SAMPLES, enough)


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
    few = np.array(
        [min(len(distinct_counts(n)) - 1 for n in sizes) < FEW_SCORES for sizes in looks]
    )
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


def pair_statistics(
    *, curve: Floats, sizes: Sizes, terms: Floats, num_samples: int, seed: int
) -> NDArray[np.float32]:
    """The statistics of simulated audits whose scores have a given trade-off curve.

    Returns:
        Shape (3, num_samples), as `observed_statistics` gives them.
    """
    [raw] = simulate_statistics(
        curves=curve[None], looks=[sizes], scans=[terms], num_samples=num_samples, seed=seed
    )
    return on_normal_scale(raw, sizes[0] * sizes[1])[..., 0]
