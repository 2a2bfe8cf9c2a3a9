"""Every rule by which scores become a bound, one entry each, without the code that applies them.

Another package adds rules by entry points of the group `dpcanary.threshold_rules`; see
docs/adding.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dpcanary.core.argument_checks import Choice
from dpcanary.core.plugins import Catalogue, function_named
from dpcanary.estimation.bound_in_words import bound_in_words
from dpcanary.estimation.estimation_settings import Conversion

_COINS = (
    "the world of each slot was a fair coin of its own, and the numbers of guesses were fixed"
    " before the scores were seen"
)
_INDEPENDENT = (
    "the scores are independent: one of each training, or of slots that do not influence each other"
)
_FIXED = "were fixed before any score was seen"
ORDER = "the scores are in the order of the runs, or in another one that does not depend on them"


class ThresholdRule(Choice):
    """How scores become a bound. Plugins may add rules by name.

    Attributes:
        COMBINED: the larger of two statistics, calibrated jointly: the best of all thresholds, and
            the AUC (with conversion `direct`, two ways to find the best threshold). Valid; the
            default.
        CALIBRATED: the best of all thresholds, as IN_SAMPLE finds it, calibrated by the simulated
            null distribution of the best. Valid.
        RANK_SUM: the AUC (Mann and Whitney), calibrated by its simulated null distribution. It has
            no threshold. Valid.
        SIMULTANEOUS: the best of all thresholds, under bounds on the error rates that hold at
            all thresholds at once. Valid.
        SPLIT: the best threshold of one half of the runs, evaluated on the other half. Valid if
            the order of the scores does not depend on them.
        ANYTIME: bets on each pair of runs, at thresholds that earlier ones chose. Valid at all
            numbers of runs at once, so that training may stop when the bound is good enough.
        FIXED: a threshold given before the scores were seen. Valid.
        IN_SAMPLE: the best of all thresholds, each under bounds that hold only at that one
            threshold. Most papers report this. NOT valid at its stated significance.
        STEINKE: a share of all slots is guessed, those with the highest and the lowest scores, and
            the right guesses are counted, under (epsilon, delta)-DP (Steinke et al., 2023, Theorem
            5.2; Boglioni et al., Theorem 1). Valid if the worlds of slots are fair coins; slots
            may depend on one another in any way.
        MAHLOUJIFAR: the same from a trade-off curve (Mahloujifar et al., 2024; Boglioni et al.,
            Algorithm 4).
        ORDER_STATISTIC: the exact distribution of right guesses if what is seen of each slot says
            nothing about the others (after Xiang et al., 2025). Valid for independent slots alone.
    """

    COMBINED = "combined"
    CALIBRATED = "calibrated"
    RANK_SUM = "rank_sum"
    SIMULTANEOUS = "simultaneous"
    SPLIT = "split"
    ANYTIME = "anytime"
    FIXED = "fixed"
    IN_SAMPLE = "in_sample"
    STEINKE = "steinke"
    MAHLOUJIFAR = "mahloujifar"
    ORDER_STATISTIC = "order_statistic"


class Proof(Choice):
    """On what the validity of a bound rests; what the mechanism must satisfy besides is assumed.

    Attributes:
        PROVEN: on a theorem, and numbers that are computed exactly, to the safe side, or
            numerically.
        PROVEN_FOR_INDEPENDENT: the same, if what is seen of a slot says nothing about the others.
        SIMULATED: on a theorem, and critical values that are simulated, on the safe side of the
            simulation's error, and interpolated.
        SIMULATED_FOR_INDEPENDENT: the same, for independent slots.
        NOT_VALID: on nothing: the bound exceeds the truth more often than it says.
    """

    PROVEN = "proven"
    PROVEN_FOR_INDEPENDENT = "proven if slots are independent"
    SIMULATED = "simulated"
    SIMULATED_FOR_INDEPENDENT = "simulated if slots are independent"
    NOT_VALID = "not valid"

    def of_pooled_slots(self) -> "Proof":
        """The proof for scores of several slots of a run that are taken as if of several runs."""
        return {
            Proof.PROVEN: Proof.PROVEN_FOR_INDEPENDENT,
            Proof.SIMULATED: Proof.SIMULATED_FOR_INDEPENDENT,
        }.get(self, self)


def state_of_proof(proof: str) -> str:
    """How it is known that a bound is valid: one word or two for a column of a table.

    The condition of a proof for independent slots is left out: it is among the assumptions.

    Example:
        >>> state_of_proof("proven if slots are independent")
        'proven'
    """
    return proof.split(" if ")[0]


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """What every lower bound on epsilon says of itself.

    Attributes:
        epsilon_lower: the bound, at least 0.
        mu_lower: lower bound on mu of mu-GDP, at least 0; NaN unless the curves are Gaussian
            (conversion `gdp`, or `subsampled_gaussian` at sample rate 1).
        delta: the delta of (epsilon, delta).
        significance: probability with which the bound may exceed the truth.
        conversion: among which trade-off curves the mechanism's was looked for.
        proof: on what its validity rests.
        assumption: in words, what must hold so that the bound is valid.
        is_valid: whether the bound holds at its significance, as `proof` says.
    """

    epsilon_lower: float
    mu_lower: float
    delta: float
    significance: float
    conversion: Conversion
    proof: Proof
    assumption: str
    is_valid: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_valid", self.proof is not Proof.NOT_VALID)

    def __str__(self) -> str:
        return bound_in_words(
            self.epsilon_lower,
            delta=self.delta,
            significance=self.significance,
            assumption=self.assumption,
            conversion=self.conversion,
            is_valid=self.is_valid,
            adjacency=getattr(self, "adjacency", None),
        )


@dataclass(frozen=True)
class Rule:
    """A threshold rule, or a rule of guesses.

    Attributes:
        choose: a function, or its name as `module:name`. It takes a `Problem` and returns a
            `BoundedThreshold`. For rules of guesses, it takes `Guesses`, a family and a
            significance, and returns the function that says whether they refute a theta.
        proof: on what the validity of its bounds rests.
        has_looks: whether bounds at several looks can hold jointly.
        anytime: whether bounds at all numbers of runs hold jointly, without planned looks.
        needs_order: whether the scores must be in the order of the runs, or in another one that
            does not depend on them.
        is_calibrated: whether a statistic is compared with its simulated null distribution.
        guesses: whether the worlds of slots are guessed, which must be fair coins.
        any_dependence: whether the slots of a run may depend on one another in any way. Otherwise
            pooled slots must be independent.
        conversions: that it has; a config's others are replaced by the first one.
        sentence: what it does, for a methods text, with citations as in `headline.Methods`.
        label: in figures; None takes the name.
        colour: in figures of one training.
        marker: of its points in figures.
    """

    choose: Callable[..., Any] | str
    proof: Proof
    has_looks: bool = False
    anytime: bool = False
    needs_order: bool = False
    is_calibrated: bool = False
    guesses: bool = False
    any_dependence: bool = False
    conversions: tuple[Conversion, ...] = tuple(Conversion)
    sentence: str = ""
    label: str | None = None
    colour: str = "#0072B2"
    marker: str = "o"

    @property
    def is_valid(self) -> bool:
        """Whether the bounds hold at the problem's significance."""
        return self.proof is not Proof.NOT_VALID

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        return function_named(self.choose) if isinstance(self.choose, str) else self.choose

    @property
    def slots(self) -> str:
        """What it allows or needs of the slots of a run, for a legend."""
        return "any dependence" if self.any_dependence else "independent slots"

    def assumption(self, *, num_looks: int = 1) -> str:
        """What must hold of the scores or, for rules of guesses, of the slots."""
        if not self.guesses:
            scores = f"{_INDEPENDENT}; {ORDER}" if self.needs_order else _INDEPENDENT
            if self.anytime:
                return f"{scores}; the attack and its settings {_FIXED}"
            counts = "the number of scores" if num_looks == 1 else "all looks"
            return f"{scores}; {counts}, the attack and its settings {_FIXED}"
        dependence = (
            "slots may depend on one another in any way"
            if self.any_dependence
            else "what is seen of one slot says nothing about the others"
        )
        return f"{_COINS}; {dependence}"

    def conversion(self, conversion: Conversion) -> Conversion:
        """The conversion that it uses where another one may be asked for."""
        return conversion if conversion in self.conversions else self.conversions[0]


_SCAN = "dpcanary.estimation.threshold_rules"
_RIGHT = "the number of right guesses, however the canaries of a training influence each other"
RULES: dict[str, Rule] = {
    ThresholdRule.COMBINED: Rule(
        f"{_SCAN}:combined",
        proof=Proof.SIMULATED,
        has_looks=True,
        is_calibrated=True,
        sentence="the larger of two statistics, scans of all thresholds or one of these and the"
        " area under the error curve, jointly compared with their simulated distribution under"
        " the least favourable scores, which allows for the choice of the threshold on the same"
        " scores",
    ),
    ThresholdRule.CALIBRATED: Rule(
        f"{_SCAN}:calibrated",
        proof=Proof.SIMULATED,
        has_looks=True,
        is_calibrated=True,
        sentence="the best of all thresholds, compared with its simulated null distribution",
    ),
    ThresholdRule.RANK_SUM: Rule(
        f"{_SCAN}:rank_sum",
        proof=Proof.SIMULATED,
        has_looks=True,
        is_calibrated=True,
        sentence="the area under the error curve, compared with its simulated null distribution",
    ),
    ThresholdRule.SIMULTANEOUS: Rule(
        f"{_SCAN}:simultaneous",
        proof=Proof.PROVEN,
        sentence="a band that holds for all thresholds at once",
    ),
    ThresholdRule.SPLIT: Rule(
        f"{_SCAN}:split",
        proof=Proof.PROVEN,
        needs_order=True,
        sentence="the threshold is chosen on one half of the scores and used on the other",
    ),
    ThresholdRule.ANYTIME: Rule(
        f"{_SCAN}:anytime",
        proof=Proof.PROVEN,
        has_looks=True,
        anytime=True,
        needs_order=True,
        sentence="bets at thresholds that were chosen on earlier scores, so that the bound is valid"
        " at every number of models, also if training stopped because of it {ville}",
    ),
    ThresholdRule.FIXED: Rule(
        f"{_SCAN}:fixed",
        proof=Proof.PROVEN,
        sentence="a threshold that was chosen before the scores were seen",
    ),
    ThresholdRule.IN_SAMPLE: Rule(
        f"{_SCAN}:in_sample",
        proof=Proof.NOT_VALID,
        sentence="the best of all thresholds on the same scores, which is not valid",
    ),
    ThresholdRule.STEINKE: Rule(
        "dpcanary.estimation.one_run.guess_methods:steinke",
        proof=Proof.PROVEN,
        guesses=True,
        any_dependence=True,
        conversions=(Conversion.DIRECT,),
        sentence=_RIGHT + " {steinke}",
        label="Steinke",
        colour="#CC79A7",
        marker="v",
    ),
    ThresholdRule.MAHLOUJIFAR: Rule(
        "dpcanary.estimation.one_run.guess_methods:mahloujifar",
        proof=Proof.PROVEN,
        guesses=True,
        any_dependence=True,
        sentence=_RIGHT + " {mahloujifar}",
        label="Mahloujifar",
        colour="#D55E00",
        marker="s",
    ),
    ThresholdRule.ORDER_STATISTIC: Rule(
        "dpcanary.estimation.one_run.guess_methods:order_statistic",
        proof=Proof.PROVEN_FOR_INDEPENDENT,
        guesses=True,
        sentence="the number of right guesses, for independent canaries {xiang}",
        label="order statistic",
        colour="#009E73",
        marker="D",
    ),
}

_CATALOGUE = Catalogue("threshold rule", "dpcanary.threshold_rules", Rule, RULES)
threshold_rule_named = _CATALOGUE.named
threshold_rule_names = _CATALOGUE.names
