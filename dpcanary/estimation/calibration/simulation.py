"""Simulates test statistics at the least favourable pairs of a family."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
from numpy.typing import NDArray

from dpcanary.estimation.calibration.kernel import statistics_of_pairs

Floats = NDArray[np.float64]
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
