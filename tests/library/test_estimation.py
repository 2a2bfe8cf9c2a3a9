"""What holds of every rule of the catalogue, estimates against naive loops, looks and claims."""

import math
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, norm

from dpcanary import InputError, Mechanism, assess_claim, estimate_epsilon
from dpcanary.core.gdp import gdp_delta, gdp_epsilon
from dpcanary.estimation import error_rates, estimate_epsilon_at_looks, expected_bound
from dpcanary.estimation.power import assess_claim_anytime
from dpcanary.estimation.rule_catalogue import RULES, ThresholdRule
from dpcanary.estimation.threshold_rules import _halves

DELTA = 1e-5
SIZE = 50  # for which the package has tables of critical values
ENTRIES = [
    (str(rule), conversion)
    for rule, entry in RULES.items()
    for conversion in ("gdp", "direct")
    if conversion in entry.conversions
]
each_entry = pytest.mark.parametrize(("rule", "conversion"), ENTRIES)
# These choose thresholds by some scores and judge them by others, so a better score may do harm.
NOT_MONOTONE = {ThresholdRule.SPLIT, ThresholdRule.ANYTIME}


def estimated(scores0, scores1, rule="combined", **options):
    if rule == "fixed":
        options.setdefault("threshold", 1.0)
    scores = {"world0_scores": scores0, "world1_scores": scores1}
    return estimate_epsilon(**scores, threshold_rule=rule, **{"delta": DELTA, **options})


def gaussian_scores(mu: float, size: int = SIZE) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(mu, 1.0, size), rng.normal(0.0, 1.0, size)


@each_entry
def test_what_proves_nothing_gives_exactly_0_and_separate_worlds_a_finite_ceiling(rule, conversion):
    for scores in ((np.ones(SIZE), np.ones(SIZE)), gaussian_scores(-3.0)):
        assert estimated(*scores, rule, conversion=conversion).epsilon_lower == 0.0
    world0, world1 = gaussian_scores(2.0)
    far = {"threshold": 30.0} if rule == "fixed" else {}
    bound = estimated(world0, world1, rule, conversion=conversion)
    ceiling = estimated(world0 + 50, world1, rule, conversion=conversion, **far)
    assert bound.epsilon_lower <= ceiling.epsilon_lower < 50
    assert ceiling.epsilon_lower > 1


@each_entry
def test_only_the_order_of_scores_counts(rule, conversion):
    (scores0, scores1), options = gaussian_scores(3.0), {"conversion": conversion}
    plain = estimated(scores0, scores1, rule, **options)
    assert plain.epsilon_lower > 0 or rule == "anytime"
    mapped = options | ({"threshold": 10.0} if rule == "fixed" else {})
    moved = estimated(scores0 * 3 + 7, scores1 * 3 + 7, rule, **mapped)
    assert moved.epsilon_lower == plain.epsilon_lower
    upper = scores0 > np.median(scores0)
    infinite, finite = (
        estimated(np.where(upper, high, scores0), scores1, rule, **options).epsilon_lower
        for high in (np.inf, 1e6)
    )
    assert infinite == finite


SCORES = st.lists(st.integers(0, 12), min_size=SIZE, max_size=SIZE).map(np.array)


@pytest.mark.parametrize(("rule", "conversion"), [
    entry for entry in ENTRIES if entry[0] not in NOT_MONOTONE
])  # fmt: skip
def test_a_bound_never_rises_if_a_score_of_world_0_falls_or_one_of_world_1_rises(rule, conversion):
    @settings(max_examples=15 if RULES[rule].guesses else 40)
    @given(SCORES, SCORES, st.integers(0, SIZE - 1), st.integers(1, 9), st.integers(0, 9))
    def holds(scores0, scores1, index, step, shift):
        options = {"conversion": conversion} | ({"threshold": 8.5} if rule == "fixed" else {})
        before = estimated(scores0 + shift, scores1, rule, **options).epsilon_lower
        for sign, scores in ((-1, scores0), (1, scores1)):
            worse = scores.copy()
            worse[index] += sign * step
            pair = (worse + shift, scores1) if sign < 0 else (scores0 + shift, worse)
            assert estimated(*pair, rule, **options).epsilon_lower <= before

    holds()


# What must hold of slots or of the order of scores, in words.
ASSUMED = {
    "the scores are independent": lambda entry: not entry.guesses,
    "fixed before": lambda entry: True,
    "order of the runs": lambda entry: entry.needs_order,
    "fair coin": lambda entry: entry.guesses,
    "in any way": lambda entry: entry.guesses and entry.any_dependence,
    "nothing about the others": lambda entry: entry.guesses and not entry.any_dependence,
}
# As argued in docs/validity.md.
PROOFS = {
    **dict.fromkeys(("combined", "calibrated", "rank_sum"), "simulated"),
    **dict.fromkeys(("simultaneous", "split", "fixed", "steinke", "mahloujifar"), "proven"),
    "anytime": "proven",
    "order_statistic": "proven if slots are independent",
    "in_sample": "not valid",
}


@each_entry
def test_a_bound_says_what_it_is_of_and_what_it_rests_on(rule, conversion):
    rng, options = np.random.default_rng(1), {"conversion": conversion, "significance": 0.05}
    scores = [rng.permutation(of_world) for of_world in gaussian_scores(2.0)]
    by_name = estimated(*scores, rule, **options)
    by_member = estimated(*scores, ThresholdRule(rule), **options)
    assert repr(by_name) == repr(by_member)  # NaN, of rules without a threshold, equals none
    assert by_name.is_valid is (rule != "in_sample")
    assert by_name.proof.value == PROOFS[rule]
    assert by_name.assumption.startswith("NOT a valid bound") is not by_name.is_valid
    assert ("Gaussian" in by_name.assumption) is (conversion == "gdp")
    assert ("nothing of the mechanism" in by_name.assumption) is (conversion == "direct")
    for words, is_assumed in ASSUMED.items():
        assert (words in by_name.assumption) is is_assumed(RULES[rule])
    assert math.isnan(by_name.mu_lower) is (conversion == "direct")
    named = by_name.threshold_rule, by_name.conversion, by_name.delta, by_name.significance
    assert named == (rule, conversion, DELTA, 0.05)


@pytest.mark.parametrize("rule", RULES)
def test_a_larger_significance_proves_more(rule):
    """Calibrated rules need a table for each, so they have fewer scores; the largest is half."""
    size, levels = (8, (0.05, 0.5)) if RULES[rule].is_calibrated else (100, (1e-3, 0.05, 0.5))
    scores = gaussian_scores(4.0, size)
    options = {"conversion": RULES[rule].conversions[0], "delta": 1e-3}
    bounds = [estimated(*scores, rule, significance=level, **options) for level in levels]
    assert tuple(bound.significance for bound in bounds) == levels
    assert (np.diff([bound.epsilon_lower for bound in bounds]) > 0).all()


@cache
def naive_upper(errors: int, trials: int, level: float) -> float:
    return 1.0 if errors == trials else float(beta.ppf(1 - level, errors + 1, trials - errors))


def naive_rates(scores0, scores1, threshold: float, levels, *, at_all: bool = False):
    """Bounds on both rates; at all thresholds, those of the next counts that are distinguished."""
    rates = []
    for wrong, level in ((scores1 >= threshold, levels[1]), (scores0 < threshold, levels[0])):
        errors, trials = int(np.sum(wrong)), len(wrong)
        if at_all:
            errors = next(int(k) for k in error_rates.distinct_counts(trials) if k >= errors)
        rates.append(naive_upper(errors, trials, level))
    return tuple(rates)


def mu_of(fpr: float, fnr: float) -> float:
    return float(norm.ppf(1 - fpr) - norm.ppf(fnr))


def naive_epsilon(scores0, scores1, conversion: str, levels, *, at_all: bool) -> float:
    """As the authors do it: a loop over all thresholds, with new counts at each."""
    best = 0.0
    for threshold in {*scores0, *scores1, math.inf}:
        fpr, fnr = naive_rates(scores0, scores1, threshold, levels, at_all=at_all)
        if conversion == "gdp":
            best = max(best, gdp_epsilon(mu=max(mu_of(fpr, fnr), 0.0), delta=DELTA))
            continue
        for rate, other in ((fpr, fnr), (fnr, fpr)):
            if 1 - DELTA - rate > 0:
                best = max(best, math.log((1 - DELTA - rate) / other))
    return best


@pytest.mark.parametrize("conversion", ["gdp", "direct"])
@pytest.mark.parametrize("sizes", [(60, 60), (45, 80), (700, 650)])
@pytest.mark.usefixtures("few_distinct")
def test_equals_a_naive_loop_over_all_thresholds(conversion, sizes):
    rng = np.random.default_rng(3)
    for mu, significance in ((0.0, 0.05), (0.7, 0.1), (2.0, 0.05), (5.0, 0.01)):
        scores = rng.normal(mu, 1, sizes[0]).round(1), rng.normal(0, 1, sizes[1]).round(1)
        level = significance / 2
        of_size = partial(error_rates.simultaneous_local_level, level=level)
        local = [of_size(num_scores=size) for size in sizes]
        for rule, levels in (("in_sample", (level, level)), ("simultaneous", local)):
            bound = estimated(*scores, rule, conversion=conversion, significance=significance)
            at_all = rule == "simultaneous"
            expected = naive_epsilon(*scores, conversion, levels, at_all=at_all)
            assert bound.epsilon_lower == pytest.approx(expected, abs=1e-9), (rule, mu)


def test_fixed_threshold_is_one_clopper_pearson_bound_per_world():
    scores0, scores1 = gaussian_scores(2.0, 400)
    bound = estimated(scores0, scores1[:350], "fixed", significance=0.1, threshold=0.8)
    rates = naive_rates(scores0, scores1[:350], 0.8, (0.05, 0.05))
    assert (bound.fpr_upper, bound.fnr_upper) == pytest.approx(rates)
    assert bound.mu_lower == pytest.approx(mu_of(*rates))
    assert gdp_delta(mu=bound.mu_lower, epsilon=bound.epsilon_lower) == pytest.approx(DELTA)
    assert bound.threshold == 0.8


def test_split_equals_a_naive_loop_over_one_half_and_bounds_of_the_other():
    rng = np.random.default_rng(6)
    scores0, scores1 = rng.normal(1.5, 1, 75).round(1), rng.normal(0, 1, 52).round(1)
    (choosing0, rest0), (choosing1, rest1) = _halves(scores0, "0"), _halves(scores1, "1")
    assert sorted([*choosing0, *rest0]) == sorted(scores0)
    assert sorted([*choosing1, *rest1]) == sorted(scores1)
    bound = estimated(scores0, scores1, "split", significance=0.1, delta=1e-3)

    def strength(threshold: float) -> float:
        return mu_of(*naive_rates(choosing0, choosing1, threshold, (0.05, 0.05)))

    assert bound.threshold == max(sorted(choosing0), key=strength)
    expected = naive_rates(rest0, rest1, bound.threshold, (0.05, 0.05))
    assert (bound.fpr_upper, bound.fnr_upper) == pytest.approx(expected)
    assert bound.mu_lower == pytest.approx(mu_of(*expected))


@pytest.mark.long
def test_bounds_at_looks_are_lower_than_alone_and_come_with_the_runs():
    """The critical values of these looks serve other tests too."""
    scores0, scores1 = gaussian_scores(2.0, 24)
    options = {"delta": DELTA, "looks": [(12, 12), (24, 24)]}

    def at_looks(num_world0: int, num_world1: int):
        scores = {"world0_scores": scores0[:num_world0], "world1_scores": scores1[:num_world1]}
        return estimate_epsilon_at_looks(**scores, **options)

    bounds = at_looks(24, 24)
    assert [bound.num_looks for bound in bounds] == [2, 2]
    for size, bound in zip((12, 24), bounds, strict=True):
        alone = estimated(scores0[:size], scores1[:size])
        assert alone.num_looks == 1
        assert 0 < bound.epsilon_lower < alone.epsilon_lower
    # A look has come when both worlds have their scores, and later scores change nothing.
    assert at_looks(18, 18) == at_looks(24, 12) == at_looks(12, 24) == bounds[:1]
    assert at_looks(24, 11) == []


def test_the_p_value_of_one_score_per_world_is_known():
    """The score of world 0 is above that of world 1 with probability Phi(mu / sqrt(2))."""
    for mu in (0.0, 0.8, 2.0):
        options = {"mechanism": mu, "num_simulations": 1_999, "seed": 3}
        above = assess_claim(world0_scores=[1.0], world1_scores=[0.0], **options)
        exact = norm.cdf(mu / math.sqrt(2))
        assert abs(above.p_value - exact) < 4 * math.sqrt(exact * (1 - exact) / 1_999)
        assert assess_claim(world0_scores=[0.0], world1_scores=[1.0], **options).p_value == 1.0
    separate = {"world0_scores": np.arange(60.0) + 60, "world1_scores": np.arange(60.0)}
    least = assess_claim(**separate, mechanism=0.5, num_simulations=99)
    assert least.p_value == pytest.approx(1 / 100)  # the observed audit is one of all
    few = {"world0_scores": [4.0, 5.0, 6.0, 7.0], "world1_scores": [0.0, 1.0, 2.0, 3.0]}
    small = assess_claim(**few, mechanism=0.0, num_simulations=1_999)  # 1 of 70 orders
    assert small.p_value == pytest.approx(1 / 70, abs=4 * math.sqrt(1 / 70 / 1_999))
    assert (above.is_least, small.is_least, least.is_least) == (False, False, True)
    large = assess_claim(**separate, epsilon=1_000, delta=DELTA, num_simulations=99)
    assert large.p_value == 1  # beyond all exponentials


@pytest.mark.usefixtures("quick_tables")
@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out", "substitute"])
def test_curves_that_differ_between_the_worlds_name_the_one_with_the_record(adjacency):
    """Bounds by such a curve would not hold with the worlds the other way around."""
    rng = np.random.default_rng(2)
    scores = {"world0_scores": rng.normal(2, 1, 40), "world1_scores": rng.normal(0, 1, 40)}
    mechanism = Mechanism(adjacency, sample_rate=0.5, num_steps=2, noise_multiplier=2.0)
    exact = {**EXACT, "mechanism": mechanism, "delta": DELTA}
    for result in (
        estimate_epsilon(**scores, **exact),
        assess_claim(**scores, mechanism=mechanism, num_simulations=99),
        assess_claim_anytime(**scores, mechanism=mechanism),
    ):
        named = "; world 0 is the one with the record" in result.assumption
        assert named is (adjacency != "substitute")
    full = Mechanism(adjacency, sample_rate=1.0, num_steps=2, noise_multiplier=2.0)
    gaussian = estimate_epsilon(**scores, delta=DELTA), assess_claim(**scores, mechanism=full)
    assert not any("the record" in result.assumption for result in gaussian)


SCORED = {"world0_scores": [1.0] * 10, "world1_scores": [0.0] * 10, "delta": DELTA}
GOOD = {
    estimate_epsilon: SCORED,
    estimate_epsilon_at_looks: {**SCORED, "looks": [(10, 10)]},
    expected_bound: {"mechanism": 1.0, "num_runs": 10, "delta": DELTA},
}
MECHANISM = Mechanism("substitute", sample_rate=0.5, num_steps=1)
EXACT = {"conversion": "subsampled_gaussian"}


@pytest.mark.parametrize(("function", "change", "message"), [
    *((estimate_epsilon, *case) for case in (
        ({"delta": 1.0}, "delta is 1.0; it must be a finite number above 0 and below 1"),
        ({"significance": 1e-15}, "significance is 1e-15; it must be at least 2e-09"),
        ({"significance": math.nextafter(0.5, 1)}, "significance is 0.50*1; .* at most 0.5"),
        ({"significance": 0.0005}, r"at least 0\.001.*simultaneous"),
        ({"threshold_rule": "fixed", "threshold": "a"}, "needs a threshold"),
        ({"threshold_rule": "fixed"}, "needs a threshold"),
        ({"threshold": 1.0}, "goes with threshold_rule 'fixed'"),
        ({"threshold_rule": "simultanous"}, "did you mean 'simultaneous'"),
        ({"threshold_rule": "split", "world0_scores": [1.0]}, "at least 2"),
        (EXACT, "needs a Mechanism"),
        (EXACT | {"mechanism": 2.0}, "needs a Mechanism"),
        ({"mechanism": MECHANISM}, "goes with 'subsampled_gaussian'"),
        ({"world0_scores": [1j, 2.0]}, "world0_scores must be real numbers, not complex128"),
        ({"world0_scores": ["1", "2"]}, "world0_scores must be real numbers"),
        ({"world0_scores": np.ma.masked_array([1.0, 2.0], [0, 1])}, "masked"),
        ({"world0_scores": [1.0, math.nan]}, r"world0_scores\[1\] is NaN \(1 of 2 are\)"),
        ({"world1_scores": [math.nan]}, r"world1_scores\[0\] is NaN"),
        ({"world1_scores": []}, "world1_scores must be one-dimensional and not empty"),
        ({"world1_scores": [[1.0]]}, "world1_scores must be one-dimensional"),
    )),
    *((estimate_epsilon_at_looks, *case) for case in (
        ({"looks": []}, "looks"),
        *(({"looks": looks}, r"looks are .*; they must be pairs .* such as \[\(50, 50\), \(100,")
          for looks in ([10], 10, [(10,)], [(10, 20, 30), (10, 20, 30)])),
        ({"looks": [(20, 20), (10, 10)]}, "do not decrease"),
        ({"looks": [(0, 10)]}, "looks is 0"),
        ({"threshold_rule": "split"}, "'split' has no bounds that hold jointly"),
    )),
    *((expected_bound, *case) for case in (
        ({"significance": 0.9}, "significance is 0.9"),
        ({"threshold_rule": "split"}, "the power of threshold_rule 'split' is not known"),
        ({"num_runs": 2}, "num_runs is 2"),
        ({"mechanism": -1.0}, "mu is -1"),
        ({"mechanism": np.array(1.0)}, "mu is array"),
        ({"delta": 1.0}, "delta"),
    )),
])  # fmt: skip
def test_bad_arguments_are_named(function, change, message):
    with pytest.raises(InputError, match=message):
        function(**GOOD[function] | change)
