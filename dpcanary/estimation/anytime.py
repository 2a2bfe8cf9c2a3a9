"""A lower bound that holds at every number of runs at once: an e-process for each curve.

docs/proofs.md proves that it is valid.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtr

from dpcanary.errors import InputError
from dpcanary.estimation.families import GRID, LEAST_RATE, Family

Floats = NDArray[np.float64]

# Bounds are thetas of this grid: steps of `_STEP`, and of this share of theta where that is more.
_STEP, _SHARE, _LARGEST = 0.01, 0.005, 12.0
# Lines touch a curve at every so many points of `GRID`, where its quantiles are in this range.
_EVERY, _LOWEST, _HIGHEST = 20, -6.0, 8.0
# Chords of smaller heights, or of a smaller part of the rates, have slopes of rounding errors.
# Lines are raised by as much, which is more than the rounding errors of the others.
_LEAST_HEIGHT, _LEAST_PART = 1e-9, 1e-5
# Pairs that are seen before the first bet, and how their number grows from one choice of bets to
# the next.
FIRST_BETS, _GROWTH = 4, 1.08
# Thresholds lie beside scores of these ranks, from the end where the worlds meet.
_RANKS = np.unique((1.5 ** np.arange(70)).astype(np.int64)) - 1
# Bets are placed on thresholds whose evidence is at least this share of the best one's.
_SHARE_OF_BEST = 0.25
# What is staked, as shares of the most that can be; each with the same part of the wealth.
STAKES = np.array([0.9, 0.6, 0.36, 0.2, 0.1, 0.05, 0.025, 0.0125])
# Curves that are looked at together.
_CHUNK = 64
# The probability with which scores in random order are taken for sorted ones.
_SORTED = 1e-9


@dataclass(frozen=True)
class Lines:
    """Straight lines above each curve of a family, which touch it (nearly).

    If a mechanism satisfies the curve, a test with false positive rate b has a true positive rate
    of at most tpr + slope (b - fpr), for every line.

    Attributes:
        thetas: shape (G,), rising.
        tpr: of the point where a line touches, shape (G, M).
        fnr: 1 - tpr, without cancellation.
        fpr: shape (G, M).
        tnr: 1 - fpr, in the same shape.
        slope: shape (G, M).
    """

    thetas: Floats
    tpr: Floats
    fnr: Floats
    fpr: Floats
    tnr: Floats
    slope: Floats

    def of_thetas(self, chosen: NDArray[np.int64]) -> "Lines":
        """The lines of some thetas."""
        return Lines(*(column[chosen] for column in vars(self).values()))


def lines_of_curves(thetas: Floats, curves: Floats) -> Lines:
    """Lines above curves that are convex as FNR by FPR, given as those of a `Family`.

    A line has the slope of a chord of the curve. It is raised to where the chords before and after
    meet, so that it is above the curve between the points, too.
    """
    quantiles = GRID[::-1]  # the FPR rises
    fpr, tnr = ndtr(-quantiles), ndtr(quantiles)
    fnr, tpr = ndtr(curves[:, ::-1]), ndtr(-curves[:, ::-1])
    # Differences of the smaller rates do not cancel.
    widths = np.where(fpr[1:] < 0.5, np.diff(fpr), -np.diff(tnr))
    heights = np.where(fnr[:, 1:] < 0.5, -np.diff(fnr, axis=1), np.diff(tpr, axis=1))
    slopes = heights / widths
    inside = (quantiles[:-1] > _LOWEST) & (quantiles[:-1] < _HIGHEST)
    chosen = np.flatnonzero(inside)[::_EVERY]
    before, slope, after = (slopes[:, chosen + shift] for shift in (-1, 0, 1))
    bends = np.maximum(before - slope, 0.0), np.maximum(slope - after, 0.0)
    both = bends[0] + bends[1]
    share = np.divide(bends[0] * bends[1], both, out=np.zeros_like(both), where=both > 0)
    raised = heights[:, chosen] / 2 + share * widths[chosen] + _LEAST_HEIGHT
    rates = np.minimum(fnr, tpr)[:, chosen]
    is_precise = heights[:, chosen] > np.maximum(_LEAST_HEIGHT, _LEAST_PART * rates)
    # Other lines are replaced by this: no rate exceeds 1.
    is_line = is_precise & (raised < fnr[:, chosen])
    slope, raised = np.where(is_line, slope, 0.0), np.where(is_line, raised, 1.0)
    like = np.zeros_like(slope)
    return Lines(
        thetas=thetas,
        tpr=np.clip(tpr[:, chosen] + raised, LEAST_RATE, 1.0),
        fnr=np.maximum(fnr[:, chosen] - raised, LEAST_RATE),
        fpr=like + fpr[chosen] + widths[chosen] / 2,
        tnr=like + tnr[chosen] - widths[chosen] / 2,
        slope=slope,
    )


@lru_cache(maxsize=16)
def lines_of_family(family: Family) -> Lines:
    """The lines of all thetas among which bounds are."""
    thetas = [0.0]
    while thetas[-1] < min(_LARGEST, family.largest):
        thetas.append(thetas[-1] + max(_STEP, _SHARE * thetas[-1]))
    grid = np.array(thetas[:-1])
    return lines_of_curves(grid, family.curves(grid))


@dataclass(frozen=True)
class _Bets:
    """What is bet against some thetas, from one choice of bets to the next.

    A pair of scores x of world 0 and y of world 1 multiplies the wealth of a stake by
    (1 + stake X) (1 - stake Y), where X = sum of gains0[k] [x >= thresholds[k]] - prices0, and Y is
    the same for y.

    Attributes:
        against: indices of G thetas.
        thresholds: shape (K,).
        gains0: shape (K, G).
        gains1: shape (K, G).
        prices0: shape (G,).
        prices1: shape (G,).
    """

    against: NDArray[np.int64]
    thresholds: Floats
    gains0: Floats
    gains1: Floats
    prices0: Floats
    prices1: Floats

    def factors(self, world0: Floats, world1: Floats) -> Floats:
        """By which the wealth of each stake is multiplied, shape (n, G, stakes)."""
        won = (world0[:, None] >= self.thresholds) @ self.gains0 - self.prices0
        lost = (world1[:, None] >= self.thresholds) @ self.gains1 - self.prices1
        factors: Floats = (1 + won[..., None] * STAKES) * (1 - lost[..., None] * STAKES)
        return factors


class EProcess:
    """Bets against each of some curves, as pairs of scores come, one of each world.

    The wealth of the bets against a curve starts at 1. If the mechanism satisfies the curve, it
    ever reaches 1 / level with a probability of at most the level.

    Attributes:
        thetas: of the curves, rising; shape (G,).
        num_pairs: the pairs that were seen.
        largest: the largest wealth so far, shape (G,).
    """

    def __init__(self, lines: Lines, *, significance: float = 0.0) -> None:
        """Starts without a pair. No bets are placed on what is refuted at the significance."""
        self.thetas = lines.thetas
        self.num_pairs = 0
        self.largest = np.ones(len(lines.thetas))
        self._lines = lines
        self._enough = 1 / significance if significance else np.inf
        self._wealth = np.full((len(lines.thetas), len(STAKES)), 1 / len(STAKES))
        self._pairs = np.empty((2, 0))
        self._bets: list[_Bets] = []
        self._next_bets = FIRST_BETS

    @property
    def bound(self) -> float:
        """The largest theta that is refuted with all smaller ones; negative if there is none."""
        holds = np.flatnonzero(self.largest < self._enough)
        num_refuted = int(holds[0]) if len(holds) else len(self.thetas)
        return float(self.thetas[num_refuted - 1]) if num_refuted else -np.inf

    def add(self, world0: Floats, world1: Floats) -> None:
        """Takes the next pairs, shapes (n,) and (n,): in the order of the runs, all at once or not.

        What has been added before decides all bets on a pair.
        """
        self._pairs = np.hstack([self._pairs, np.stack([world0, world1])])
        while self.num_pairs < self._pairs.shape[1]:
            if self.num_pairs == self._next_bets:
                self._bets = list(self._new_bets())
                self._next_bets = max(self.num_pairs + 1, int(_GROWTH * self.num_pairs))
            until = min(self._next_bets, self._pairs.shape[1])
            for bets in self._bets:
                self._settle(bets, *self._pairs[:, self.num_pairs : until])
            self.num_pairs = until

    def _settle(self, bets: _Bets, world0: Floats, world1: Floats) -> None:
        against = bets.against
        steps = np.concatenate([self._wealth[against][None], bets.factors(world0, world1)])
        with np.errstate(over="ignore"):  # an infinite wealth refutes as well
            wealth = np.cumprod(steps, axis=0)
            best = wealth.sum(axis=-1).max(axis=0)
        self._wealth[against] = wealth[-1]
        self.largest[against] = np.maximum(self.largest[against], best)

    def _new_bets(self) -> "list[_Bets]":
        """The bets against all curves that what was seen speaks against, by what was seen."""
        seen0, seen1 = np.sort(self._pairs[:, : self.num_pairs], axis=1)
        thresholds = _thresholds(seen0, seen1)
        rates = _rates(seen0, thresholds), _rates(seen1, thresholds)
        chosen = []
        open_ones = np.flatnonzero(self.largest < self._enough)
        for start in range(0, len(open_ones), _CHUNK):
            against = open_ones[start : start + _CHUNK]
            bets = _bets(against, self._lines.of_thetas(against), thresholds, rates)
            if bets is None:  # nothing speaks against larger thetas, either
                break
            chosen.append(bets)
        return chosen


def _thresholds(seen0: Floats, seen1: Floats) -> Floats:
    """Thresholds beside the lowest scores of world 0 and the highest of world 1, both sorted.

    A threshold is halfway between neighbouring scores.
    """
    ranks = _RANKS[: np.searchsorted(_RANKS, len(seen0))]
    values = np.unique(np.concatenate([seen0, seen1]))
    below = np.searchsorted(values, seen0[ranks])
    above = np.searchsorted(values, seen1[len(seen1) - 1 - ranks], side="right")
    gaps = np.unique(np.concatenate([below, above]))
    gaps = gaps[(gaps > 0) & (gaps < len(values))]
    with np.errstate(invalid="ignore"):
        halfway = values[gaps - 1] / 2 + values[gaps] / 2
    return np.asarray(np.where(np.isfinite(halfway), halfway, values[gaps]))


def _rates(seen: Floats, thresholds: Floats) -> Floats:
    """Estimated shares of scores at or above the thresholds (Krichevsky and Trofimov)."""
    return (len(seen) - np.searchsorted(seen, thresholds) + 0.5) / (len(seen) + 1)


def _bets(
    against: NDArray[np.int64], lines: Lines, thresholds: Floats, rates: tuple[Floats, Floats]
) -> _Bets | None:
    """Bets against some thetas, by the lines that are nearest to the estimated rates.

    The distance is the Kullback-Leibler divergence of a pair of decisions. It is the evidence of a
    pair against the curve. None if all estimates are below all curves.
    """
    tpr, fpr = rates
    estimates = np.stack([tpr, 1 - tpr, fpr, 1 - fpr])
    logs = np.log(np.stack([lines.tpr, lines.fnr, lines.fpr, lines.tnr]))
    own = (estimates * np.log(estimates)).sum(axis=0)
    evidence = own[:, None, None] - np.tensordot(estimates.T, logs, axes=1)
    nearest = evidence.argmin(axis=-1)
    evidence = np.take_along_axis(evidence, nearest[..., None], axis=-1)[..., 0]
    rows = np.arange(len(against))
    a, b, tnr, slope = (
        column[rows, nearest] for column in (lines.tpr, lines.fpr, lines.tnr, lines.slope)
    )
    above = tpr[:, None] - a > slope * (fpr[:, None] - b)
    evidence = np.where(above, evidence, 0.0)
    best = evidence.max(axis=0, initial=0.0)
    if not best.any():
        return None
    weights = np.where((evidence >= _SHARE_OF_BEST * best) & above, 1.0, 0.0)
    weights /= np.maximum(a, slope * tnr)
    # Nobody can lose more than the stake: X >= -1 and Y <= 1.
    most = np.maximum((weights * a).sum(axis=0), (weights * slope * tnr).sum(axis=0))
    weights = np.divide(weights, most, out=np.zeros_like(weights), where=most > 0)
    return _Bets(
        against=against,
        thresholds=thresholds,
        gains0=weights,
        gains1=weights * slope,
        prices0=(weights * a).sum(axis=0),
        prices1=(weights * slope * b).sum(axis=0),
    )


def paired(world0_scores: Floats, world1_scores: Floats) -> tuple[Floats, Floats]:
    """The k-th scores of both worlds, for all k for which there are both.

    Raises:
        InputError: if the scores are sorted.
    """
    check_order(rule="anytime", world0_scores=world0_scores, world1_scores=world1_scores)
    num_pairs = min(len(world0_scores), len(world1_scores))
    return world0_scores[:num_pairs], world1_scores[:num_pairs]


def check_order(*, rule: str, **scores: Floats) -> None:
    """Refuses sorted scores, by their name, for a rule that uses the order of the runs.

    Raises:
        InputError: if an array is sorted, and would hardly be so by chance.
    """
    for name, values in scores.items():
        if not ((values[1:] >= values[:-1]).all() or (values[1:] <= values[:-1]).all()):
            continue
        # Equal scores, such as those of a yes or a no, may well be sorted by chance.
        counts = np.unique(values, return_counts=True)[1]
        log_orders = gammaln(len(values) + 1) - gammaln(counts + 1.0).sum()
        if log_orders > np.log(2 / _SORTED):
            raise InputError(
                f"{name} are sorted; rule {rule!r} needs them in the order of the runs, which must"
                " not depend on the scores"
            )
