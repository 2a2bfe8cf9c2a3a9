"""Computes the null table of a family, some numbers of scores, and a significance."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpcanary.estimation.calibration.null_table import (
    FEW_SCORES,
    SHARES,
    SPARSE_SHARE,
    NullTable,
    components_of,
    make_null_table,
)
from dpcanary.estimation.calibration.simulation import simulate_statistics
from dpcanary.estimation.calibration.statistics import on_normal_scale, scan_terms
from dpcanary.estimation.families import Family

Floats = NDArray[np.float64]
Sizes = tuple[int, int]

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
    """Simulates the statistics along the family and takes their critical values.

    Args:
        family: of trade-off curves.
        looks: numbers of scores of world 0 and world 1 at each look, not decreasing.
        significance: of all looks together.
        num_samples: audits to simulate.
        on_progress: called with the number of audits just simulated.
    """
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
