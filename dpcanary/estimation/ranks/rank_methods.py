"""Rules by which ranks of secrets refute a trade-off curve: their p-values, and one entry each.

docs/proofs.md proves each of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, floor, log2

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, gammaln, xlog1py, xlogy

from dpcanary.core.adjacency import Adjacency
from dpcanary.estimation.estimation_settings import Conversion, RankRule
from dpcanary.estimation.one_run.guess_methods import recursion_refutes
from dpcanary.estimation.ranks.rank_laws import Lists, NullCurve, Ranks, largest_chances
from dpcanary.estimation.rule_catalogue import Proof

Floats = NDArray[np.float64]

# For `bits`: parts of a bit that count, at most, and the length of the sums' law.
_PARTS, _MOST_SUMS = 4, 2**21
_ROUND_OFF, _ROUND_OFF_OF_EACH = 1e-12, 1e-15
# For `mahloujifar`: significances between which its p-value is searched, and the ratio of the ends.
_LEAST_P, _P_RATIO = 1e-12, 1.001


@dataclass(frozen=True)
class GuessedSecrets:
    """What is known of the secrets of a training, or of several.

    Attributes:
        ranks: of all secrets, shape (m,).
        lists: the guesses.
        num_guesses: secrets that are guessed; fixed beforehand.
        num_correct: those whose true value is in its list.
    """

    ranks: Ranks
    lists: Lists
    num_guesses: int
    num_correct: int

    @property
    def num_secrets(self) -> int:
        """All secrets, guessed or not."""
        return len(self.ranks)


@dataclass(frozen=True)
class RankRuleEntry:
    """A rule of ranks.

    Attributes:
        p_value: of guesses under a curve.
        proof: on what the validity of its bounds rests.
        assumption: in words, what must hold of secrets, besides their law.
        any_dependence: whether the secrets of a training may depend on one another in any way.
        uses_lists: whether guesses are lists of a size that was fixed beforehand. Otherwise the
            ranks themselves count.
        may_abstain: whether secrets may be left out that the attack is unsure of. For independent
            secrets, the law of right guesses is not known then.
        adjacencies: under which it holds.
        conversions: that it has.
        sentence: what it does, for a methods text.
    """

    p_value: Callable[[GuessedSecrets, NullCurve], float]
    proof: Proof
    assumption: str
    any_dependence: bool
    uses_lists: bool
    may_abstain: bool = False
    adjacencies: tuple[Adjacency, ...] = tuple(Adjacency)
    conversions: tuple[Conversion, ...] = tuple(Conversion)
    sentence: str = ""

    def conversion(self, asked: Conversion) -> Conversion:
        """The conversion that it uses where another one may be asked for."""
        return asked if asked in self.conversions else self.conversions[0]


def _single(secrets: GuessedSecrets, curve: NullCurve) -> float:
    [chance] = largest_chances(curve, secrets.ranks, secrets.lists)
    return float(chance)


def _count(secrets: GuessedSecrets, curve: NullCurve) -> float:
    if secrets.num_correct == 0:
        return 1.0
    [chance] = largest_chances(curve, [secrets.lists.size], secrets.lists)
    return float(bdtrc(secrets.num_correct - 1, secrets.num_guesses, chance))


def _bits(secrets: GuessedSecrets, curve: NullCurve) -> float:
    weights, thresholds = exposure_weights(secrets.ranks, secrets.lists.num_candidates)
    return tail_of_sum(weights, largest_chances(curve, thresholds, secrets.lists))


def exposure_weights(ranks: Ranks, num_candidates: int) -> tuple[NDArray[np.int64], Floats]:
    """Whole numbers that fall with the rank, in quarters of a bit of log2(k / rank).

    With very many secrets they are coarser.

    Returns:
        The weight of each secret, and for each weight w the largest rank that has at least w,
        which falls from k to 1.
    """
    bits = log2(num_candidates)
    parts = min(float(_PARTS), max(_MOST_SUMS / (len(ranks) * bits), 1 / bits))
    levels = np.arange(floor(parts * bits + 1e-9) + 1)
    thresholds = np.maximum(np.floor(num_candidates * 2.0 ** (-levels / parts)), 1.0)
    weights = len(levels) - np.searchsorted(thresholds[::-1], ranks, side="left") - 1
    return np.asarray(weights, np.int64), thresholds


def tail_of_sum(weights: NDArray[np.int64], chances: Floats) -> float:
    """The probability that a sum of independent weights is at least that of `weights`.

    Args:
        weights: observed, shape (m,).
        chances: the probability that a weight is at least 0, 1, ..., falling from 1.
    """
    observed, count = int(weights.sum()), len(weights)
    if observed == 0:
        return 1.0
    masses = np.maximum(-np.diff(chances, append=0.0), 0.0)
    length = 1 << int(count * (len(masses) - 1) + 1).bit_length()
    # The error of a transform's power grows with the power; it is added.
    sums = np.fft.irfft(np.fft.rfft(masses, length) ** count, length)
    round_off = _ROUND_OFF + count * _ROUND_OFF_OF_EACH
    return float(min(max(sums[observed:].sum(), 0.0) + round_off, 1.0))


def mahloujifar_refutes(secrets: GuessedSecrets, tabulated: Floats, significance: float) -> bool:
    """Whether the recursion refutes the curve at a significance."""
    counts = secrets.num_secrets, secrets.num_guesses, secrets.num_correct
    lists = secrets.lists
    return recursion_refutes(
        tabulated, counts, significance=significance, own=lists.own, other=lists.other
    )


def _mahloujifar(secrets: GuessedSecrets, curve: NullCurve) -> float:
    tabulated = curve.tabulated()
    if not mahloujifar_refutes(secrets, tabulated, 1 - 1e-9):
        return 1.0
    low, high = _LEAST_P, 1 - 1e-9
    if mahloujifar_refutes(secrets, tabulated, low):
        return low
    while high > _P_RATIO * low:
        middle = (low * high) ** 0.5
        low, high = (
            (low, middle) if mahloujifar_refutes(secrets, tabulated, middle) else (middle, high)
        )
    return high


def _steinke(secrets: GuessedSecrets, curve: NullCurve) -> float:
    epsilon, delta = curve.epsilon, curve.delta
    if secrets.num_correct == 0:
        return 1.0
    k, r, guesses = secrets.lists.num_candidates, secrets.lists.size, secrets.num_guesses
    # Both are divided by exp(epsilon), which may overflow.
    scale = r + (k - r) * exp(-epsilon)
    chance, excess = r / scale, delta * (k - 1) * exp(-epsilon) / scale
    tail = float(bdtrc(secrets.num_correct - 1, guesses, chance))
    # The slots after the first `guesses` may all be guessed last.
    weights = secrets.num_secrets - guesses + _sum_of_largest_masses(guesses, chance)
    return min(1.0, tail + excess * weights)


def _sum_of_largest_masses(guesses: int, chance: float) -> float:
    """The sum of the largest probabilities of Binomial(n, chance), n = 0, ..., guesses - 1."""
    n = np.arange(guesses, dtype=np.float64)
    mode = np.minimum(np.floor((n + 1) * chance), n)
    logs = (
        gammaln(n + 1) - gammaln(mode + 1) - gammaln(n - mode + 1)
        + xlogy(mode, chance) + xlog1py(n - mode, -chance)
    )  # fmt: skip
    return float(np.exp(logs).sum())


_ANY = "the secrets may depend on one another in any way"
_INDEPENDENT = "what is seen of one secret says nothing about the others"
_FIXED = "the size of the lists and the number of guesses were fixed before the ranks were seen"
_FIXED_SIZE = "the size of the lists was fixed before the ranks were seen"

RANK_RULES: dict[str, RankRuleEntry] = {
    RankRule.SINGLE: RankRuleEntry(
        _single,
        proof=Proof.PROVEN,
        assumption="the secret and the attack were chosen before any rank was seen",
        any_dependence=True,
        uses_lists=False,
        sentence="the rank of one secret among its candidates",
    ),
    RankRule.MAHLOUJIFAR: RankRuleEntry(
        _mahloujifar,
        proof=Proof.PROVEN,
        assumption=f"{_FIXED}; {_ANY}",
        any_dependence=True,
        uses_lists=True,
        may_abstain=True,
        adjacencies=(Adjacency.SUBSTITUTE,),
        sentence="the number of secrets that are guessed, however they influence each other"
        " {mahloujifar}",
    ),
    RankRule.STEINKE: RankRuleEntry(
        _steinke,
        proof=Proof.PROVEN,
        assumption=f"{_FIXED}; {_ANY}",
        any_dependence=True,
        uses_lists=True,
        may_abstain=True,
        adjacencies=(Adjacency.SUBSTITUTE,),
        conversions=(Conversion.DIRECT,),
        sentence="the number of secrets that are guessed, however they influence each other"
        " {steinke}",
    ),
    RankRule.COUNT: RankRuleEntry(
        _count,
        proof=Proof.PROVEN_FOR_INDEPENDENT,
        assumption=f"{_FIXED_SIZE}; {_INDEPENDENT}",
        any_dependence=False,
        uses_lists=True,
        sentence="the number of secrets that are guessed, for independent secrets",
    ),
    RankRule.BITS: RankRuleEntry(
        _bits,
        proof=Proof.PROVEN_FOR_INDEPENDENT,
        assumption=_INDEPENDENT,
        any_dependence=False,
        uses_lists=False,
        sentence="the sum of the exposures of secrets, for independent secrets",
    ),
}
