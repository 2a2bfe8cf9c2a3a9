"""The statistics of observed scores that the calibrated rules use.

Each is a monotone function of the empirical ROC curve: it can only rise if a score of world 0 comes
to lie above one of world 1 that was not below it before. Ties count for world 1.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.checks import checked_real
from dpcanary.estimation.error_rates import clopper_pearson_upper_table, count_errors
from dpcanary.estimation.families import GRID, LEAST_RATE, Family

Floats = NDArray[np.float64]
Sizes = tuple[int, int]

# Where a statistic would be infinite.
_LARGEST = 50.0


@lru_cache(maxsize=64)
def scan_terms(*, family: Family, sizes: Sizes, significance: float) -> Floats:
    """The terms of the two scans, by which each pair of error counts is ranked.

    The published scan bounds each error rate at half the significance (Nasr et al., 2023). The
    strict scan bounds it at a twentieth, so that the noise of the tails seldom decides.

    Args:
        family: gives the strength of error bounds.
        sizes: numbers of scores of world 0 and world 1.
        significance: of the bound.

    Returns:
        Shape (2, 4, max(sizes) + 1): by count of false positives, false negatives, false positives
        and false negatives. Counts beyond a world's size are not used.
    """
    out = np.full((2, 4, max(sizes) + 1), -np.inf)
    for scan, level in enumerate((significance / 2, significance / 20)):
        fnr, fpr = (clopper_pearson_upper_table(num_trials=n, level=level) for n in sizes)
        for place, terms in enumerate(family.strength_terms(fpr, fnr)):
            out[scan, place, : len(terms)] = terms
    return out


def observed_statistics(
    world0_scores: Floats, world1_scores: Floats, terms: Floats
) -> NDArray[np.float32]:
    """The largest strength of both scans, and the AUC on a normal scale.

    Args:
        world0_scores: shape (n0,).
        world1_scores: shape (n1,).
        terms: of `scan_terms`.

    Returns:
        Shape (3,), as `pair_statistics` gives them for simulated scores.
    """
    counts = count_errors(world0_scores=world0_scores, world1_scores=world1_scores)
    fp, fn = counts.false_positives, counts.false_negatives
    scans = np.maximum(terms[:, 0, fp] + terms[:, 1, fn], terms[:, 2, fp] + terms[:, 3, fn])
    # Every world-0 score of one threshold ties with the others and has their false positives.
    repeats = np.diff(fn, append=counts.num_world0)
    num_pairs = counts.num_world0 * counts.num_world1
    losses = float(fp @ repeats) / num_pairs
    raw = np.array([*scans.max(axis=1), losses]).astype(np.float32)
    return on_normal_scale(raw, num_pairs)


def on_normal_scale(raw: NDArray[np.float32], num_pairs: int) -> NDArray[np.float32]:
    """Replaces the last statistic, the share of lost pairs, by sqrt(2) Phi^-1(AUC), in place.

    This estimates mu if scores are Gaussian. All statistics are finite afterwards.

    Args:
        raw: shape (3, ...): two scans and the share of pairs in which world 1 is not below world 0.
        num_pairs: of a world-0 and a world-1 score.
    """
    share = (raw[2].astype(np.float64) * num_pairs + 0.5) / (num_pairs + 1)
    raw[2] = -np.sqrt(2) * ndtri(share)
    return np.clip(raw, -_LARGEST, _LARGEST, out=raw)


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
