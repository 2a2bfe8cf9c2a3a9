"""A lower bound on epsilon from the scores of two worlds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan

from numpy.typing import ArrayLike

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.errors import InputError
from dpcanary.estimation.anytime import EProcess, lines_of_family, paired
from dpcanary.estimation.conversion_families import family_of
from dpcanary.estimation.error_rates import checked_significance, checked_worlds
from dpcanary.estimation.estimation_settings import GUESSED_SHARE, Conversion
from dpcanary.estimation.families import Family
from dpcanary.estimation.rule_catalogue import LowerBound, Rule, ThresholdRule, threshold_rule_named
from dpcanary.estimation.threshold_rules import BoundedThreshold, Problem, bounded

_OF_IN_SAMPLE = "the threshold was chosen on the scores it is judged by"
_OF_OTHERS = "its rule is not valid at the significance"


@dataclass(frozen=True, kw_only=True)
class EpsilonEstimate(LowerBound):
    """A lower bound on epsilon from scores of two worlds, with everything that it rests on.

    Attributes:
        fpr_upper: upper bound on the false positive rate at the threshold. The calibrated rules do
            not use it; it holds at this threshold alone.
        fnr_upper: the same for the false negative rate.
        threshold: scores at or above it count as world 0; NaN for rules without one, such
            as `rank_sum`.
        num_looks: the number of looks that hold jointly at the significance; 1 if the bound holds
            alone.
        threshold_rule: how the scores became a bound.
    """

    fpr_upper: float
    fnr_upper: float
    threshold: float
    num_looks: int
    threshold_rule: str


def estimate_epsilon(
    *,
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    delta: float,
    significance: float = 0.05,
    conversion: Conversion | str = Conversion.GDP,
    threshold_rule: ThresholdRule | str = ThresholdRule.COMBINED,
    threshold: float | None = None,
    mechanism: Mechanism | None = None,
    guessed_share: float = GUESSED_SHARE,
) -> EpsilonEstimate:
    """Bounds epsilon from below by how well the scores tell the worlds apart.

    docs/validity.md explains the rules, and docs/proofs.md proves them. The scores must be
    independent, as those of runs with independent randomness are.

    Args:
        world0_scores: shape (n0,); one score per run of world 0. Higher means world 0 is likelier.
        world1_scores: shape (n1,); one score per run of world 1.
        delta: in (0, 1).
        significance: probability with which the bound may exceed the truth, in [2e-9, 0.5], and at
            least 0.001 for the calibrated rules (`combined`, `calibrated`, `rank_sum`). These need
            a table of critical values. It is in the package for conversion `gdp`, significance 0.05
            and two worlds of 4 to 64, 81, 102, 128 or 160 to 262,144 scores each, whose sizes may
            differ by 20 % from 160 on; and for conversion `direct` at delta 1e-5 for some round
            numbers of scores.
            Between the tabulated sizes, a bound near the largest possible one needs a table of its
            own. Any other table is computed once, with a progress bar (about ten seconds at 1,250
            scores per world, and at most a minute and a half, on two cores), and kept on disk.
        conversion: `gdp`, `subsampled_gaussian` or `direct`; see `Conversion`.
        threshold_rule: one of `ThresholdRule`, or the name of a plugin's rule. For `anytime`, the
            scores must be in the order of the runs.
        threshold: only for rule `fixed`.
        mechanism: only for conversion `subsampled_gaussian`: its adjacency, sample rate and number
            of steps. Its noise is not used.
        guessed_share: in (0, 1]; only for the rules of guesses, which need no independent scores.
            `estimate_epsilon_one_run` takes numbers of guesses instead.

    Returns:
        The bound. Without signal it is exactly 0.

    Raises:
        InputError: if an argument is out of range or a score is NaN; the message names it.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> estimate = estimate_epsilon(
        ...     world0_scores=rng.normal(2.0, 1.0, 1_000),
        ...     world1_scores=rng.normal(0.0, 1.0, 1_000),
        ...     delta=1e-5,
        ... )
        >>> 8.5 < estimate.epsilon_lower < 10.0  # the truth is mu = 2, epsilon = 9.997
        True
    """
    rule = threshold_rule_named(str(threshold_rule))
    if threshold is not None and str(threshold_rule) != ThresholdRule.FIXED:
        raise InputError(
            f"a threshold goes with threshold_rule 'fixed', not with {str(threshold_rule)!r}"
        )
    scores0, scores1 = checked_worlds(world0_scores, world1_scores)
    problem = Problem(
        world0_scores=scores0,
        world1_scores=scores1,
        significance=checked_significance(significance),
        family=_family(conversion, delta, mechanism),
        threshold=threshold,
        guessed_share=checked_real("guessed_share", guessed_share, most=1.0, most_included=True),
    )
    return _estimate(problem, rule, str(threshold_rule), Conversion(conversion), float(delta))


def estimate_epsilon_at_looks(
    *,
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    looks: Sequence[tuple[int, int]],
    delta: float,
    significance: float = 0.05,
    conversion: Conversion | str = Conversion.GDP,
    threshold_rule: ThresholdRule | str = ThresholdRule.COMBINED,
    mechanism: Mechanism | None = None,
) -> list[EpsilonEstimate]:
    """Bounds at several numbers of runs, which all hold jointly.

    So the bound may be looked at while runs come in, and training may stop when it is good enough,
    if the looks are fixed before the first run.

    Args:
        world0_scores: shape (n0,), in the order of the runs.
        world1_scores: shape (n1,), from models trained in world 1.
        looks: the numbers of scores of world 0 and of world 1 at each look, not decreasing. They
            may go beyond the scores that are there.
        delta: in (0, 1).
        significance: probability with which any of the bounds may exceed the truth.
        conversion: see `estimate_epsilon`, also for the mechanism.
        threshold_rule: `combined`, `calibrated` or `rank_sum`; also `anytime`, whose bounds hold
            jointly at all numbers of runs, so that looks change none of them.
        mechanism: only for conversion `subsampled_gaussian`.

    Returns:
        One bound for each look for which there are scores; none if no look has come.

    Raises:
        InputError: as `estimate_epsilon`; also for looks that decrease, or a rule without joint
            bounds.
    """
    name, rule = str(threshold_rule), threshold_rule_named(str(threshold_rule))
    if not rule.has_looks:
        raise InputError(f"threshold_rule {name!r} has no bounds that hold jointly at looks")
    sizes = _checked_looks(looks)
    scores0, scores1 = checked_worlds(world0_scores, world1_scores)
    family = _family(conversion, delta, mechanism)
    return [
        _estimate(
            Problem(
                world0_scores=scores0[:n0],
                world1_scores=scores1[:n1],
                significance=checked_significance(significance),
                family=family,
                looks=sizes,
                look=look,
            ),
            rule,
            name,
            Conversion(conversion),
            float(delta),
        )
        for look, (n0, n1) in enumerate(sizes)
        if n0 <= len(scores0) and n1 <= len(scores1)
    ]


def _checked_looks(looks: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    try:
        pairs = [(first, second) for first, second in looks]
    except (TypeError, ValueError):
        raise InputError(
            f"looks are {looks!r}; they must be pairs of numbers of scores, of world 0 and of world"
            " 1, such as [(50, 50), (100, 100)]"
        ) from None
    sizes = tuple((checked_count("looks", n0), checked_count("looks", n1)) for n0, n1 in pairs)
    rises = all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(sizes))
    if not sizes or not rises:
        raise InputError(f"looks are {sizes}; they must be numbers of scores that do not decrease")
    return sizes


def _family(conversion: Conversion | str, delta: float, mechanism: Mechanism | None) -> Family:
    checked = checked_real("delta", delta, most=1.0)
    return family_of(Conversion(conversion), delta=checked, mechanism=mechanism)


class AnytimeBound:
    """The bound of rule `anytime` while runs come in. It holds whenever you look, and stop.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> bound = AnytimeBound(delta=1e-5)
        >>> while bound.estimate.epsilon_lower < 1 and bound.num_runs < 1_000:
        ...     bound.add(world0_scores=rng.normal(2, 1, 1), world1_scores=rng.normal(0, 1, 1))
        >>> bound.num_runs < 200  # the truth is mu = 2, epsilon = 9.997
        True
    """

    def __init__(
        self,
        *,
        delta: float,
        significance: float = 0.05,
        conversion: Conversion | str = Conversion.GDP,
        mechanism: Mechanism | None = None,
    ) -> None:
        """Starts without a run. The arguments are those of `estimate_epsilon`.

        Raises:
            InputError: if an argument is out of range.
        """
        self._family = _family(conversion, delta, mechanism)
        self._conversion, self._delta = Conversion(conversion), float(delta)
        self._significance = checked_significance(significance)
        self._process = EProcess(lines_of_family(self._family), significance=self._significance)

    @property
    def num_runs(self) -> int:
        """Runs of both worlds together."""
        return 2 * self._process.num_pairs

    def add(self, *, world0_scores: ArrayLike, world1_scores: ArrayLike) -> None:
        """Takes the scores of the next runs, as many of each world: shapes (n,) and (n,).

        Raises:
            InputError: if they are not as many, are sorted, or one is NaN.
        """
        scores0, scores1 = checked_worlds(world0_scores, world1_scores)
        if len(scores0) != len(scores1):
            raise InputError(
                f"there are {len(scores0)} world0_scores and {len(scores1)} world1_scores; the bets"
                " are on pairs: add as many of each world"
            )
        self._process.add(*paired(scores0, scores1))

    @property
    def estimate(self) -> EpsilonEstimate:
        """The bound from the runs so far: the largest of all numbers of runs up to these."""
        return _estimate_of(
            BoundedThreshold(nan, nan, nan, self._process.bound),
            family=self._family,
            rule=threshold_rule_named(ThresholdRule.ANYTIME),
            name=ThresholdRule.ANYTIME.value,
            conversion=self._conversion,
            delta=self._delta,
            significance=self._significance,
        )


def _estimate(
    problem: Problem, rule: Rule, name: str, conversion: Conversion, delta: float
) -> EpsilonEstimate:
    return _estimate_of(
        bounded(problem, rule),
        family=problem.family,
        rule=rule,
        name=name,
        conversion=conversion,
        delta=delta,
        significance=problem.significance,
        num_looks=max(1, len(problem.looks)),
    )


def _estimate_of(
    chosen: BoundedThreshold,
    *,
    family: Family,
    rule: Rule,
    name: str,
    conversion: Conversion,
    delta: float,
    significance: float,
    num_looks: int = 1,
) -> EpsilonEstimate:
    strength = max(chosen.strength, 0.0)
    assumption = f"{family.assumption}; {rule.assumption(num_looks=num_looks)}"
    why_not = _OF_IN_SAMPLE if name == ThresholdRule.IN_SAMPLE else _OF_OTHERS
    return EpsilonEstimate(
        epsilon_lower=family.epsilon(strength, delta),
        mu_lower=strength if family.is_mu else nan,
        fpr_upper=chosen.fpr_upper,
        fnr_upper=chosen.fnr_upper,
        threshold=chosen.threshold,
        delta=delta,
        significance=significance,
        num_looks=num_looks,
        conversion=conversion,
        threshold_rule=name,
        proof=rule.proof,
        assumption=assumption if rule.is_valid else f"NOT a valid bound ({why_not}); {assumption}",
    )
