"""Statistics of observed scores, their critical values, and the bounds that these give."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.argument_checks import checked_real
from dpcanary.estimation.error_rates import clopper_pearson_upper, distinct_counts
from dpcanary.estimation.families import AUC, GRID, LEAST_RATE, PUBLISHED_SCAN, Family

Floats = NDArray[np.float64]
Sizes = tuple[int, int]

# Where a statistic would be infinite.
_LARGEST = 50.0
# Shares of fewer pairs than this are distinct in single precision.
_FEW_PAIRS = 2**22


@lru_cache(maxsize=64)
def scan_terms(*, family: Family, sizes: Sizes, significance: float) -> Floats:
    """The terms of the two scans, by which each pair of error counts is ranked.

    The published scan bounds each error rate at half the significance (Nasr et al., 2023). The
    strict scan bounds it at a twentieth, so that the noise of the tails seldom decides.

    Returns:
        Shape (2, 4, points): by false positives, false negatives, false positives and false
        negatives, at each of a world's `distinct_counts`. Points beyond these are not used.
    """
    counts = [distinct_counts(n) for n in sizes]
    out = np.full((2, 4, max(map(len, counts))), -np.inf)
    for scan, level in enumerate((significance / 2, significance / 20)):
        upper = {
            n: clopper_pearson_upper(kept, num_trials=n, level=level)
            for n, kept in dict(zip(sizes, counts, strict=True)).items()
        }
        fnr, fpr = (upper[n] for n in sizes)
        for place, terms in enumerate(family.strength_terms(fpr, fnr)):
            out[scan, place, : len(terms)] = terms
    return out


def observed_statistics(
    world0_scores: Floats, world1_scores: Floats, terms: Floats
) -> NDArray[np.float32]:
    """The largest strength of both scans, and the AUC on a normal scale: shape (3,).

    Each is a monotone function of the empirical ROC curve: it can only rise if a score of world 0
    comes to lie above one of world 1 that was not below it before. Ties count for world 1.
    """
    x, y = np.sort(world0_scores), np.sort(world1_scores)
    counts0, counts1 = distinct_counts(len(x)), distinct_counts(len(y))
    # Thresholds are the scores of world 0 with so many below; places are those among the counts.
    fn = np.arange(len(counts0) - 1)
    fp = np.searchsorted(counts1, len(y) - np.searchsorted(y, x[counts0[:-1]], side="left"))
    scans = np.maximum(terms[:, 0, fp] + terms[:, 1, fn], terms[:, 2, fp] + terms[:, 3, fn])
    num_pairs = len(x) * len(y)
    # A score between two thresholds loses against no more than the lower one.
    losses = float(counts1[fp] @ np.diff(counts0)) / num_pairs
    raw = np.array([*scans.max(axis=1), losses]).astype(np.float32)
    return on_normal_scale(raw, num_pairs)


def on_normal_scale(raw: NDArray[np.float32], num_pairs: int) -> NDArray[np.float32]:
    """Replaces the last statistic, the share of lost pairs, by sqrt(2) Phi^-1(AUC), in place.

    This estimates mu if scores are Gaussian. All statistics are finite afterwards.

    `raw` has shape (3, ...): two scans and the share of pairs in which world 1 is not below
    world 0.
    """
    shares = raw[2].astype(np.float64)
    if num_pairs < min(shares.size, _FEW_PAIRS):  # most shares occur often
        values = _gaussian_distances(
            (np.arange(num_pairs + 1) / num_pairs).astype(np.float32), num_pairs
        )
        raw[2] = values[np.rint(shares * num_pairs).astype(np.int64)]
    else:
        raw[2] = _gaussian_distances(shares, num_pairs)
    return np.clip(raw, -_LARGEST, _LARGEST, out=raw)


def _gaussian_distances(shares: NDArray[np.floating], num_pairs: int) -> Floats:
    smoothed = (shares.astype(np.float64) * num_pairs + 0.5) / (num_pairs + 1)
    return np.asarray(-np.sqrt(2) * ndtri(smoothed))


def curve_of(mechanism: Mechanism | float) -> Floats:
    """The trade-off curve of a mechanism, or G_mu, on `GRID`; see `Family.curves`.

    Raises:
        InputError: if mu is negative or not finite.
        AccountingError: if the curve cannot be computed.
    """
    if not isinstance(mechanism, Mechanism):
        return np.asarray(GRID - checked_real("mu", mechanism, zero_included=True))
    return _exact_curve(mechanism)


@lru_cache(maxsize=16)
def _exact_curve(mechanism: Mechanism) -> Floats:
    # Accountants take a while to import.
    from dpcanary.accounting.exact_trade_off import trade_off_curve

    fnr = trade_off_curve(mechanism).fnr(ndtr(-GRID))
    return np.asarray(ndtri(np.maximum(fnr, LEAST_RATE)), np.float64)


Statistics = NDArray[np.float32]
Components = Mapping[str, tuple[int, ...]]

# Shares of the largest theta. Above `SPARSE_SHARE` few errors are left, and statistics take few
# values; so do they everywhere if there are fewer than `FEW_SCORES` in a world.
SPARSE_SHARE, FEW_SCORES = 0.85, 64
SHARES = np.union1d(np.linspace(0.0, SPARSE_SHARE, 37), np.linspace(SPARSE_SHARE, 1.0, 37))
# With this probability a critical value is at least the true one.
_CONFIDENCE = 0.999
# The part of the samples that gives the scales of combined statistics; the others calibrate them.
_SCALING_PART = 4


def components_of(family: Family) -> Components:
    """The statistics of each calibrated rule."""
    return {"combined": family.combined, "calibrated": (PUBLISHED_SCAN,), "rank_sum": (AUC,)}


@dataclass(frozen=True)
class NullTable:
    """What each rule's statistic must exceed to reject theta, at each of L looks.

    Attributes:
        thetas: shape (G,), rising from 0.
        components: by rule, the statistics that it takes the largest of.
        critical: by rule, shape (L, G), not falling with theta. A look rejects a theta if the
            rule's statistic exceeds the value.
        scales: shape (L, 3, G): each statistic's own critical values, roughly. A rule of several
            statistics compares them by where they are on this scale.
        sparse_from: shape (L,). From this theta on a look's statistics take few values, and a
            bound is rounded down to one of `thetas`.
        trusted_to: a bound beyond this is to be computed from another table.
    """

    thetas: Floats
    components: Components
    critical: Mapping[str, Statistics]
    scales: Statistics
    sparse_from: Floats
    trusted_to: float = np.inf

    def bound(self, *, rule: str, look: int, statistics: Statistics) -> float:
        """The least theta that a look does not reject by its statistics, of shape (3,)."""
        scales = self.scales[look]
        value = rule_statistic(self.components[rule], statistics, scales, self.thetas)
        critical = self.critical[rule][look]
        above = int(np.searchsorted(critical, value, side="left"))
        if above == 0:
            return 0.0
        low = float(self.thetas[above - 1])
        # A value that is a critical value itself does not exceed it: theta may be just above `low`.
        if above == len(critical) or value == critical[above]:
            return low
        if self.thetas[above] > self.sparse_from[look]:
            return low
        gap = float(critical[above] - critical[above - 1])
        part = float(value - critical[above - 1]) / gap
        return low + part * (float(self.thetas[above]) - low)


def rule_statistic(
    components: tuple[int, ...], statistics: Statistics, scales: Statistics, thetas: Floats
) -> Statistics:
    """A rule's statistic: its only component, or the one that is largest on the scales.

    From statistics of shape (3, ...) it makes one of shape (...) that falls with none of them.
    """
    if len(components) == 1:
        return np.asarray(statistics[components[0]], np.float32)
    parts = [np.interp(statistics[c], scales[c], thetas).astype(np.float32) for c in components]
    return np.asarray(np.maximum.reduce(parts), np.float32)


def make_null_table(
    *,
    thetas: Floats,
    statistics: Statistics,
    components: Components,
    significance: float,
    sparse_from: Floats,
) -> NullTable:
    """The critical values from simulated statistics.

    With several looks, a theta is rejected wrongly at any of them with at most the significance.
    The statistics have shape (L, 3, B, G), with the same samples at all thetas and looks.
    """
    num_scaling = statistics.shape[2] // _SCALING_PART
    scales = np.quantile(
        statistics[:, :, :num_scaling], 1 - significance, axis=2, method="higher"
    ).astype(np.float32)
    scales = np.maximum.accumulate(scales, axis=-1)
    critical = {}
    for rule, chosen in components.items():
        # What set the scales must not calibrate the statistic that is made with them.
        start = num_scaling if len(chosen) > 1 else 0
        looks = zip(statistics[:, :, start:], scales, strict=True)
        values = np.stack(
            [rule_statistic(chosen, normals, scale, thetas) for normals, scale in looks]
        )
        critical[rule] = np.maximum.accumulate(_critical_values(values, significance), axis=-1)
    return NullTable(thetas, components, critical, scales, sparse_from)


def _critical_values(values: Statistics, significance: float) -> Statistics:
    """Values that statistics of shape (L, B, G) exceed at any look with at most the significance.

    All looks reject at the same level of their own. Their number of samples is the largest that is
    safe: were the probability above the significance, so few of B samples would exceed it only
    with 1 - `_CONFIDENCE`.
    """
    from scipy.stats import binom  # takes long to import; most bounds need no new table

    num_looks, num_samples, num_thetas = values.shape
    allowed = int(binom.ppf(1 - _CONFIDENCE, num_samples, significance)) - 1
    if num_looks == 1:
        place = num_samples - 1 - allowed
        return np.partition(values, place, axis=1)[:, place]
    ordered = -np.sort(-values, axis=1)
    out = np.empty((num_looks, num_thetas), np.float32)
    for g in range(num_thetas):
        # How many samples are at least as large, at the look where they are fewest.
        ranks = [
            num_samples - np.searchsorted(column[::-1], values[look, :, g], side="left")
            for look, column in enumerate(ordered[:, :, g])
        ]
        least = np.sort(np.min(ranks, axis=0))
        # Samples of a rank below this one are at most `allowed`.
        out[:, g] = ordered[:, least[allowed] - 1, g]
    return out
