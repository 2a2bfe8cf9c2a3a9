"""Simulated audits of one mechanism by the best possible adversary."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.checks import checked_real
from dpcanary.estimation.calibration.statistics import on_normal_scale
from dpcanary.estimation.families import GRID, LEAST_RATE

Floats = NDArray[np.float64]
Sizes = tuple[int, int]


@lru_cache(maxsize=16)
def curve_of(mechanism: Mechanism | float) -> Floats:
    """The trade-off curve of a mechanism, or G_mu, on `GRID`; see `Family.curves`.

    Raises:
        InputError: if mu is negative or not finite.
        AccountingError: if the curve cannot be computed.
    """
    if not isinstance(mechanism, Mechanism):
        return np.asarray(GRID - checked_real("mu", mechanism, zero_included=True))
    # Accountants take a while to import.
    from dpcanary.accounting.trade_off import trade_off_curve

    fnr = trade_off_curve(mechanism).fnr(ndtr(-GRID))
    return np.asarray(ndtri(np.maximum(fnr, LEAST_RATE)), np.float64)


def pair_statistics(
    *, curve: Floats, sizes: Sizes, terms: Floats, num_samples: int, seed: int
) -> NDArray[np.float32]:
    """The statistics of simulated audits whose scores have a given trade-off curve.

    Args:
        curve: as `curve_of` gives it.
        sizes: numbers of scores of world 0 and world 1.
        terms: of `scan_terms`.
        num_samples: audits.
        seed: of the draws.

    Returns:
        Shape (3, num_samples), as `observed_statistics` gives them.
    """
    # Compiles, which takes a while to import.
    from dpcanary.estimation.calibration.simulation import simulate_statistics

    [raw] = simulate_statistics(
        curves=curve[None], looks=[sizes], scans=[terms], num_samples=num_samples, seed=seed
    )
    return on_normal_scale(raw, sizes[0] * sizes[1])[..., 0]
