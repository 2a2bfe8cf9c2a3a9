"""Critical values of test statistics along a family of curves, and the bounds that they give."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcanary.estimation.families import AUC, PUBLISHED_SCAN, Family

Floats = NDArray[np.float64]
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
        """The least theta that a look does not reject.

        Args:
            rule: a key of `critical`.
            look: its index.
            statistics: shape (3,), of the look's scores.
        """
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

    Args:
        components: which statistics the rule uses.
        statistics: shape (3, ...).
        scales: shape (3, G).
        thetas: shape (G,).

    Returns:
        Shape (...). It does not fall with any of the statistics.
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

    Args:
        thetas: shape (G,).
        statistics: shape (L, 3, B, G), with the same samples at all thetas and looks.
        components: by rule.
        significance: of all looks together.
        sparse_from: see `NullTable`.
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
        values = np.stack([rule_statistic(chosen, one, scale, thetas) for one, scale in looks])
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
    ordered = -np.sort(-values, axis=1)
    if num_looks == 1:
        return ordered[:, allowed]
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
