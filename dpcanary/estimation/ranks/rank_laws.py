"""The largest chance that an attack ranks a secret among the first, by the trade-off curve.

A record holds a secret, one of k values, uniform whatever all else is. Somebody sees what a
training releases, and ranks the k values. docs/proofs.md proves what this module computes.

Under substitute adjacency, a training that satisfies the curve f, which is its own inverse, has the
true value among the first r < k with probability at most p, the solution of

    (k - r) / (k - 1) p = 1 - f(r / (k - 1) (1 - p)).

For every such f, k and r, some mechanism attains it. Under add/remove and zero-out adjacency, p is
1 - f(r / k), the best power of a test whose false positive rate is that of a blind guess.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.errors import InputError
from dpcanary.estimation.families import GDP, Family
from dpcanary.estimation.null_distributions.statistics import curve_of
from dpcanary.scoring.scores import ranks_among

Floats = NDArray[np.float64]
Ranks = NDArray[np.int64]

# Rates of false positives below 1 / 5e7 are beyond what curves of DP-SGD are computed for.
MOST_CANDIDATES_OF_EXACT_CURVES = 10_000_000
# Beyond these log-odds chances are 1, and so many halvings leave no error.
_LARGEST_LOG_ODDS, _HALVINGS = 40.0, 46


@dataclass(frozen=True)
class NullCurve:
    """A trade-off curve as the null hypothesis that ranks may refute.

    Attributes:
        allows: whether the curve is at most this FNR at this FPR, for arrays of both.
        tabulated: the curve on `GRID`; see `Family.curves`.
        epsilon: of (epsilon, delta)-DP, if the curve is its; otherwise NaN, as is delta.
        delta: of the claim.
    """

    allows: Callable[[Floats, Floats], NDArray[np.bool_]]
    tabulated: Callable[[], Floats]
    epsilon: float = nan
    delta: float = nan


def curve_of_family(family: Family, theta: float) -> NullCurve:
    """The curve of a family at theta."""
    return NullCurve(
        allows=lambda fpr, fnr: np.asarray(family.strength(fpr, fnr) <= theta),
        tabulated=lambda: family.curves(np.array([theta]))[0],
        epsilon=nan if family.delta is None else theta,
        delta=nan if family.delta is None else family.delta,
    )


def curve_of_claim(mechanism: Mechanism | float) -> NullCurve:
    """The curve of a mechanism, or G_mu."""
    if not isinstance(mechanism, Mechanism):
        return curve_of_family(GDP, checked_real("mu", mechanism, zero_included=True))
    # Accountants take a while to import.
    from dpcanary.accounting.exact_trade_off import trade_off_curve

    curve = trade_off_curve(mechanism)
    return NullCurve(
        allows=lambda fpr, fnr: np.asarray(curve.fnr(fpr) <= fnr),
        tabulated=lambda: curve_of(mechanism),
    )


@dataclass(frozen=True)
class Lists:
    """Guesses that are lists of `size` of `num_candidates` values, under an adjacency."""

    num_candidates: int
    size: int
    adjacency: Adjacency

    @property
    def own(self) -> float:
        """Among other values of a secret in its list, the share of those outside the list."""
        return (self.num_candidates - self.size) / (self.num_candidates - 1)

    @property
    def other(self) -> float:
        """The probability that another value, drawn at random, is in a list without the secret."""
        return self.size / (self.num_candidates - 1)

    def largest_refuted(self, chance: float, family: Family) -> float:
        """The largest theta whose curve makes `chance` unattainable or just attainable, or 0.

        The equation of this module says of a chance p which error rates a test then has.
        """
        if self.size >= self.num_candidates or chance <= self.size / self.num_candidates:
            return 0.0
        fpr, fnr = self.size / self.num_candidates, 1 - chance
        if self.adjacency is Adjacency.SUBSTITUTE:
            fpr, fnr = self.other * (1 - chance), 1 - self.own * chance
        theta = float(family.strength(np.array([fpr]), np.array([fnr]))[0])
        return min(max(theta, 0.0), family.largest)


def checked_ranks(ranks: ArrayLike, num_candidates: int) -> Ranks:
    """Ranks as whole numbers from 1 to `num_candidates`, shape (m,).

    Raises:
        InputError: if they are something else; the message says which.
    """
    count = checked_count("num_candidates", num_candidates, least=2)
    if np.ma.isMaskedArray(ranks):
        raise InputError("ranks is a masked array: each secret needs its rank")
    try:
        numbers = np.asarray(ranks)
    except (TypeError, ValueError) as error:
        raise InputError(f"ranks must be an array of whole numbers: {error}") from error
    if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "fiu":
        raise InputError(
            "ranks must be whole numbers, one for each secret; their shape is"
            f" {numbers.shape} and their type {numbers.dtype}"
        )
    inside = (numbers >= 1) & (numbers <= count) & (numbers == np.floor(numbers))  # NaN is not
    if not inside.all():
        first = int(np.argmin(inside))
        raise InputError(
            f"ranks[{first}] is {numbers[first]}; a rank is a whole number from 1, the likeliest,"
            f" to num_candidates, {count}, and a tie counts as the last of its ranks"
        )
    return numbers.astype(np.int64)


def ranks_of_truth(*, scores: ArrayLike, truth: ArrayLike) -> Ranks:
    """The rank of each secret among its candidates; ties count as the last of their ranks.

    Args:
        scores: shape (m, k); higher: likelier.
        truth: shape (m,); the index of each secret's true value.

    Raises:
        InputError: the shapes differ, an index is out of range, or a score is NaN or masked.

    Example:
        >>> ranks_of_truth(scores=[[0.1, 0.7, 0.2], [0.5, 0.5, 0.1]], truth=[1, 0]).tolist()
        [1, 2]
    """
    if np.ma.isMaskedArray(scores) or np.ma.isMaskedArray(truth):
        raise InputError("scores or truth is a masked array: each candidate needs its score")
    try:
        table, indices = np.asarray(scores, np.float64), np.asarray(truth)
    except (TypeError, ValueError) as error:
        raise InputError(
            "scores and truth must be arrays of numbers, where all secrets have as many candidates:"
            f" {error}"
        ) from None
    if table.ndim != 2 or indices.shape != table.shape[:1] or indices.dtype.kind not in "iu":
        raise InputError(
            f"scores and truth have shapes {table.shape} and {indices.shape}; they must be"
            " (secrets, candidates) and (secrets,), and truth whole numbers"
        )
    if not ((indices >= 0) & (indices < table.shape[1])).all():
        raise InputError(f"truth must be from 0 to {table.shape[1] - 1}, the last candidate")
    if np.isnan(table).any():
        first = int(np.argwhere(np.isnan(table))[0, 0])
        raise InputError(f"a score of secret {first} is NaN")
    return ranks_among(table, indices)


def largest_chances(curve: NullCurve, sizes: ArrayLike, lists: Lists) -> Floats:
    """The largest chance that the true value is among the first r, for each r of `sizes`.

    Args:
        curve: of the mechanism.
        sizes: whole numbers from 1 to the number of candidates, shape (n,).
        lists: of which the candidates and the adjacency count, under which the curve is.

    Returns:
        Rounded up, by a part of 1e-12 of the odds.
    """
    num_candidates = lists.num_candidates
    sizes = np.asarray(sizes, np.float64)
    chances = np.ones(sizes.shape)
    inside = sizes < num_candidates
    r = sizes[inside]
    # A blind guess is always allowed. Chances are bisected by the logarithm of their odds.
    low, high = logit(r / num_candidates), np.full(r.shape, _LARGEST_LOG_ODDS)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        chance, rest = expit(middle), expit(-middle)
        if lists.adjacency is Adjacency.SUBSTITUTE:
            fpr = r / (num_candidates - 1) * rest
            fnr = 1 - (num_candidates - r) / (num_candidates - 1) * chance
        else:
            fpr, fnr = r / num_candidates, rest
        allowed = curve.allows(fpr, fnr)
        low, high = np.where(allowed, middle, low), np.where(allowed, high, middle)
    chances[inside] = expit(high)
    return chances
