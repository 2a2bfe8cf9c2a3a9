"""A lower bound on epsilon from the ranks of secrets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log, log2, nan

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.errors import InputError
from dpcanary.estimation.conversion_families import family_of
from dpcanary.estimation.error_rates import checked_scores, checked_significance
from dpcanary.estimation.estimation_settings import Conversion, RankRule
from dpcanary.estimation.families import Family, direct_family
from dpcanary.estimation.one_run.one_run_bound import largest_refuted
from dpcanary.estimation.power import ClaimTest
from dpcanary.estimation.ranks.rank_laws import (
    MOST_CANDIDATES_OF_EXACT_CURVES,
    Lists,
    Ranks,
    checked_ranks,
    curve_of_claim,
    curve_of_family,
)
from dpcanary.estimation.ranks.rank_methods import (
    RANK_RULES,
    GuessedSecrets,
    RankRuleEntry,
    mahloujifar_refutes,
)
from dpcanary.estimation.rule_catalogue import LowerBound

Numbers = int | Sequence[int]

_PRECISION, _LARGEST_THETA = 1e-6, 50.0
_LAW = (
    "each secret is one of its candidates, each with the same probability whatever all else is, as"
    " by a fair draw, and stands nowhere else"
)


@dataclass(frozen=True, kw_only=True)
class RanksEstimate(LowerBound):
    """A lower bound on epsilon from ranks, with everything that it rests on.

    Attributes:
        num_secrets: secrets with a rank.
        num_candidates: values that each secret could have had.
        list_size: how many of the likeliest candidates a guess names.
        num_guesses: secrets that were guessed.
        num_correct: guesses that name the true value.
        chance_lower: lower bound on the attack's chance to have the true value in its list, with
            no conversion to epsilon; NaN for rules that allow dependence, which give none.
        exposure: mean of log2(num_candidates / rank) over the secrets.
        num_choices: pairs of list size and number of guesses that were fixed beforehand. The
            significance is divided among them, and the best bound counts.
        adjacency: that the bound is under.
        rule: how ranks became a bound.
    """

    num_secrets: int
    num_candidates: int
    list_size: int
    num_guesses: int
    num_correct: int
    chance_lower: float
    exposure: float
    num_choices: int
    adjacency: Adjacency
    rule: str


def estimate_epsilon_from_ranks(
    *,
    ranks: ArrayLike,
    num_candidates: int,
    delta: float,
    significance: float = 0.05,
    conversion: Conversion | str = Conversion.DIRECT,
    rule: RankRule | str | None = None,
    list_size: Numbers = 1,
    num_guesses: Numbers | None = None,
    confidences: ArrayLike | None = None,
    adjacency: Adjacency | str = Adjacency.SUBSTITUTE,
    mechanism: Mechanism | None = None,
) -> RanksEstimate:
    """Bounds epsilon from below by how well secrets are found among their candidates.

    Each secret of the training data was drawn by a known law, so that each of its candidates is the
    true one with the same probability, whatever all else is. After training, an attack ranks the
    candidates of each secret. Nothing else of the training needs to be known: this audits finished
    models. docs/proofs.md proves the rules.

    Secrets of several trainings, one after the other, count like secrets of one.

    Args:
        ranks: shape (m,); the rank of each secret's true value among its candidates, 1 for the
            likeliest. A tie counts as the last of its ranks (`ranks_of_truth`).
        num_candidates: k, at least 2.
        delta: in (0, 1).
        significance: probability with which the bound may exceed the truth, in [2e-9, 0.5].
        conversion: `direct` (the default, as nothing is known of a finished model's training),
            `gdp` or `subsampled_gaussian`; see `Conversion`.
        rule: see `RankRule`. The default allows any dependence between secrets: `single` for one
            secret, otherwise `mahloujifar`.
        list_size: a guess names so many of the likeliest candidates; for rules that count guesses.
            Fixed before the ranks are seen, as are the numbers of guesses. Several sizes share the
            significance, and the best bound counts.
        num_guesses: secrets to guess, those with the highest confidences, for rules that allow any
            dependence; by default all. One number, or one for each list size.
        confidences: shape (m,); how sure the attack is of each guess. They must not depend on which
            candidate is true. Only with num_guesses.
        adjacency: `substitute`, what the record says; or `add_remove` or `zero_out`, for rules
            `single`, `count` and `bits`: without the record, guesses would be blind.
        mechanism: only for `subsampled_gaussian`: its sample rate and number of steps, under this
            adjacency.

    Returns:
        The bound. Without signal it is exactly 0.

    Raises:
        InputError: if an argument is out of range; the message names it.

    Example:
        A model ranks a code of six digits first. One secret is enough:

        >>> estimate = estimate_epsilon_from_ranks(ranks=[1], num_candidates=10**6, delta=1e-9)
        >>> round(estimate.epsilon_lower, 2)
        10.87
    """
    valid_ranks = checked_ranks(ranks, num_candidates)
    adjacency = Adjacency(adjacency)
    name, entry = _rule(rule, valid_ranks, adjacency)
    level, delta = checked_significance(significance), checked_real("delta", delta, most=1.0)
    chosen = Conversion(conversion)
    if chosen not in entry.conversions:
        conversions = ", ".join(entry.conversions)
        raise InputError(f"rule {name!r} has no conversion {chosen.value!r}, only {conversions}")
    _check_mechanism(mechanism, adjacency, num_candidates)
    family = family_of(chosen, delta=delta, mechanism=mechanism)
    rounds = _rounds(
        valid_ranks, num_candidates, adjacency, entry, list_size, num_guesses, confidences
    )
    bounds = [
        _bound(secrets, name, entry, family, chosen, delta, level / len(rounds))
        for secrets in rounds
    ]
    best = max(bounds, key=lambda bound: bound.epsilon_lower)
    return replace(best, num_choices=len(rounds), significance=level)


def assess_claim_from_ranks(
    *,
    ranks: ArrayLike,
    num_candidates: int,
    mechanism: Mechanism | float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    rule: RankRule | str | None = None,
    list_size: int = 1,
    num_guesses: int | None = None,
    confidences: ArrayLike | None = None,
    adjacency: Adjacency | str = Adjacency.SUBSTITUTE,
) -> ClaimTest:
    """A p-value for the claim that a training is as private as it was accounted to be.

    A small p-value is evidence that the training leaks more than is claimed, if the secrets have
    the law that is assumed. A large one shows nothing: the attack may be weak.

    Args:
        ranks: see `estimate_epsilon_from_ranks`, also for all that is not named here.
        num_candidates: k.
        mechanism: the accounted mechanism, or mu of Gaussian differential privacy. Or give:
        epsilon: the claimed epsilon, and
        delta: its delta.
        rule: see `RankRule`; `steinke` needs epsilon and delta.
        list_size: a guess names so many candidates.
        num_guesses: secrets to guess.
        confidences: of the guesses.
        adjacency: that the claim is under.

    Raises:
        InputError: if an argument is out of range, or both claims or none are given.
        AccountingError: if the mechanism's curve cannot be computed.

    Example:
        >>> test = assess_claim_from_ranks(
        ...     ranks=[1, 1, 3], num_candidates=10_000, epsilon=2.0, delta=1e-6
        ... )
        >>> test.p_value < 0.01
        True
    """
    valid_ranks = checked_ranks(ranks, num_candidates)
    adjacency = Adjacency(adjacency)
    name, entry = _rule(rule, valid_ranks, adjacency)
    if (mechanism is None) == (epsilon is None) or (epsilon is None) != (delta is None):
        raise InputError("give the claim as mechanism, or as epsilon and delta")
    if epsilon is not None and delta is not None:
        family = direct_family(checked_real("delta", delta, most=1.0))
        curve = curve_of_family(family, checked_real("epsilon", epsilon, zero_included=True))
    else:
        assert mechanism is not None
        if name == RankRule.STEINKE:
            raise InputError("rule 'steinke' tests claims of epsilon and delta alone")
        claimed = mechanism if isinstance(mechanism, Mechanism) else None
        _check_mechanism(claimed, adjacency, num_candidates)
        curve = curve_of_claim(mechanism)
    rounds = _rounds(
        valid_ranks, num_candidates, adjacency, entry, list_size, num_guesses, confidences
    )
    if len(rounds) > 1:
        raise InputError(
            f"there are {len(rounds)} list sizes; a claim is tested with one, chosen beforehand"
        )
    [secrets] = rounds
    return ClaimTest(entry.p_value(secrets, curve), None, _words(entry))


def exposure_lower_bound(
    *, exposure: float, delta: float, num_candidates: int, significance: float = 0.05
) -> float:
    """The epsilon that the exposure of one secret shows: a corollary of the theorem for one rank.

    Exposure is log2(num_candidates) - log2(rank) (Carlini et al., 2019). The bound is
    ln(2^exposure - 1) + ln(significance / (1 - significance)) for small delta, under substitute
    adjacency. It is that of rule `single`, conversion `direct`.

    Example:
        >>> round(exposure_lower_bound(exposure=19.93, delta=1e-9, num_candidates=10**6), 2)
        10.87
    """
    count = checked_count("num_candidates", num_candidates, least=2)
    bits = checked_real(
        "exposure", exposure, most=log2(count) + 1e-9, most_included=True, zero_included=True
    )
    rank = count * 2.0**-bits
    level, delta = checked_significance(significance), checked_real("delta", delta, most=1.0)
    gained = level * (count - rank) - (count - 1) * delta
    return max(0.0, log(gained / (rank * (1 - level)))) if gained > 0 else 0.0


def _rule(
    rule: RankRule | str | None, ranks: Ranks, adjacency: Adjacency
) -> tuple[str, RankRuleEntry]:
    default = RankRule.SINGLE if len(ranks) == 1 else RankRule.MAHLOUJIFAR
    name = RankRule(rule) if rule is not None else default
    if name is RankRule.SINGLE and len(ranks) > 1:
        raise InputError(
            f"rule 'single' is for one secret, and there are {len(ranks)} ranks; a secret that is"
            " chosen by its rank shows nothing"
        )
    entry = RANK_RULES[name]
    if adjacency not in entry.adjacencies:
        raise InputError(
            f"rule {name.value!r} holds under substitute adjacency alone, not under"
            f" {adjacency.value!r}: for several secrets, 'count' and 'bits' have the others, if"
            " secrets are independent"
        )
    return name.value, entry


def _check_mechanism(
    mechanism: Mechanism | None, adjacency: Adjacency, num_candidates: int
) -> None:
    if not isinstance(mechanism, Mechanism):
        return
    if mechanism.adjacency is not adjacency:
        raise InputError(
            f"the mechanism is under {mechanism.adjacency.value!r} adjacency, and the bound under"
            f" {adjacency.value!r}: give both the same"
        )
    if mechanism.sample_rate < 1 and num_candidates > MOST_CANDIDATES_OF_EXACT_CURVES:
        raise InputError(
            f"num_candidates is {num_candidates:,}; the exact curves of sampled mechanisms are for"
            f" at most {MOST_CANDIDATES_OF_EXACT_CURVES:,}: rank a random subset of the candidates"
            " with the true one in it, or use conversion 'direct' or 'gdp'"
        )


def _rounds(
    ranks: Ranks,
    num_candidates: int,
    adjacency: Adjacency,
    entry: RankRuleEntry,
    list_size: Numbers,
    num_guesses: Numbers | None,
    confidences: ArrayLike | None,
) -> list[GuessedSecrets]:
    """One round of guesses for each size of lists."""
    sizes = [checked_count("list_size", size) for size in np.atleast_1d(list_size).tolist()]
    counts = len(ranks) if num_guesses is None else num_guesses
    numbers = [checked_count("num_guesses", count) for count in np.atleast_1d(counts).tolist()]
    if not sizes or len(numbers) not in (1, len(sizes)):
        raise InputError(
            f"there are {len(sizes)} list sizes and {len(numbers)} numbers of guesses; they belong"
            " together"
        )
    numbers = numbers * len(sizes) if len(numbers) == 1 else numbers
    if not entry.uses_lists and (sizes != [1] or num_guesses is not None):
        raise InputError(
            "this rule counts ranks, not guesses: list_size and num_guesses are for rules"
            f" {', '.join(name for name, other in RANK_RULES.items() if other.uses_lists)}"
        )
    if not entry.may_abstain and min(numbers) < len(ranks):
        raise InputError(
            f"num_guesses is {min(numbers)} of {len(ranks)} secrets, and this rule needs all: rules"
            f" {', '.join(name for name, other in RANK_RULES.items() if other.may_abstain)} allow"
            " a choice"
        )
    if max(sizes) >= num_candidates:
        raise InputError(f"list_size is {max(sizes)}; it must be below num_candidates")
    if max(numbers) > len(ranks):
        raise InputError(f"num_guesses is {max(numbers)}; there are {len(ranks)} secrets to guess")
    if confidences is None and min(numbers) < len(ranks):
        raise InputError(
            f"num_guesses is {min(numbers)} of {len(ranks)} secrets: confidences must say which"
        )
    order = np.arange(len(ranks))
    if confidences is not None:
        values = checked_scores("confidences", confidences)
        if len(values) != len(ranks):
            raise InputError(f"there are {len(values)} confidences and {len(ranks)} ranks")
        # A stable order by confidence alone: it must not depend on which guesses are right.
        order = np.argsort(-values, kind="stable")
    return [
        GuessedSecrets(
            ranks=ranks,
            lists=Lists(num_candidates, size, adjacency),
            num_guesses=number,
            num_correct=int((ranks[order[:number]] <= size).sum()),
        )
        for size, number in zip(sizes, numbers, strict=True)
    ]


def _bound(
    secrets: GuessedSecrets,
    name: str,
    entry: RankRuleEntry,
    family: Family,
    conversion: Conversion,
    delta: float,
    level: float,
) -> RanksEstimate:
    lists, chance = secrets.lists, nan
    if name == RankRule.SINGLE:
        theta = replace(lists, size=int(secrets.ranks[0])).largest_refuted(level, family)
    elif name == RankRule.COUNT:
        chance = _clopper_pearson_lower(secrets, level)
        theta = lists.largest_refuted(chance, family)
    else:
        theta = _searched(secrets, name, entry, family, level)
    exposures = np.log2(lists.num_candidates / secrets.ranks)
    return RanksEstimate(
        epsilon_lower=family.epsilon(theta, delta),
        mu_lower=theta if family.is_mu else nan,
        num_secrets=secrets.num_secrets,
        num_candidates=lists.num_candidates,
        list_size=lists.size,
        num_guesses=secrets.num_guesses,
        num_correct=secrets.num_correct,
        chance_lower=chance,
        exposure=float(exposures.mean()),
        num_choices=1,
        adjacency=lists.adjacency,
        delta=delta,
        significance=level,
        conversion=conversion,
        rule=name,
        proof=entry.proof,
        assumption="; ".join(filter(None, (family.assumption, _words(entry)))),
    )


def _words(entry: RankRuleEntry) -> str:
    return "; ".join(filter(None, (_LAW, entry.assumption)))


def _clopper_pearson_lower(secrets: GuessedSecrets, level: float) -> float:
    right, guesses = secrets.num_correct, secrets.num_guesses
    return float(betaincinv(right, guesses - right + 1, level)) if right else 0.0


def _searched(
    secrets: GuessedSecrets, name: str, entry: RankRuleEntry, family: Family, level: float
) -> float:
    """The largest theta that the ranks refute."""
    if name == RankRule.MAHLOUJIFAR:
        return largest_refuted(
            lambda theta: mahloujifar_refutes(
                secrets, curve_of_family(family, theta).tabulated(), level
            ),
            largest=family.largest,
        )

    def refutes(theta: float) -> bool:
        return entry.p_value(secrets, curve_of_family(family, theta)) <= level

    if name == RankRule.STEINKE:
        return largest_refuted(refutes, largest=family.largest)
    # The p-value rises with theta, as all chances do.
    return _largest_refuted_of_rising(refutes, largest=min(family.largest, _LARGEST_THETA))


def _largest_refuted_of_rising(refutes: Callable[[float], bool], *, largest: float) -> float:
    if not refutes(0.0):
        return 0.0
    low, high = 0.0, largest
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low
