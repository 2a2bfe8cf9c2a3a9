"""Estimates against a naive loop and closed forms, and in corner cases."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import beta, binom, norm

from dpcanary import Mechanism, assess_claim, estimate_epsilon, expected_bound
from dpcanary.errors import InputError
from dpcanary.estimation import estimate_epsilon_at_looks
from dpcanary.estimation.error_rates import clopper_pearson_upper_table, simultaneous_local_level
from dpcanary.estimation.rules import ThresholdRule
from dpcanary.estimation.threshold_rules import _halves
from dpcanary.gdp import gdp_delta, gdp_epsilon

DELTA = 1e-5


def gaussian_scores(mu: float, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1.0, size), rng.normal(0.0, 1.0, size)


def naive_upper(errors: int, trials: int, level: float) -> float:
    return 1.0 if errors == trials else float(beta.ppf(1 - level, errors + 1, trials - errors))


def naive_epsilon(scores0, scores1, conversion: str, level0: float, level1: float) -> float:
    """As the authors do it: a loop over all thresholds, with new counts at each."""
    best = 0.0
    for threshold in [*scores0, *scores1, math.inf]:
        fpr = naive_upper(int(np.sum(scores1 >= threshold)), len(scores1), level1)
        fnr = naive_upper(int(np.sum(scores0 < threshold)), len(scores0), level0)
        if conversion == "gdp":
            mu = norm.ppf(1 - fpr) - norm.ppf(fnr)
            best = max(best, gdp_epsilon(mu=mu, delta=DELTA) if mu > 0 else 0.0)
        else:
            for one, other in ((fpr, fnr), (fnr, fpr)):
                if 1 - DELTA - one > 0:
                    best = max(best, math.log((1 - DELTA - one) / other))
    return best


@pytest.mark.parametrize("conversion", ["gdp", "direct"])
@pytest.mark.parametrize("mu", [0.0, 0.7, 2.0, 5.0])
@pytest.mark.parametrize("sizes", [(60, 60), (45, 80)])
def test_equals_a_naive_loop_over_all_thresholds(conversion, mu, sizes):
    rng = np.random.default_rng(3)
    scores0, scores1 = rng.normal(mu, 1, sizes[0]).round(1), rng.normal(0, 1, sizes[1]).round(1)
    for rule, levels in {
        "in_sample": (0.025, 0.025),
        "simultaneous": tuple(
            simultaneous_local_level(num_scores=size, level=0.025) for size in sizes
        ),
    }.items():
        estimate = estimate_epsilon(
            world0_scores=scores0,
            world1_scores=scores1,
            delta=DELTA,
            conversion=conversion,
            threshold_rule=rule,
        )
        expected = naive_epsilon(scores0, scores1, conversion, *levels)
        assert estimate.epsilon_lower == pytest.approx(expected, abs=1e-9)


def test_fixed_threshold_is_one_clopper_pearson_bound_per_world():
    scores0, scores1 = gaussian_scores(2.0, 400)
    estimate = estimate_epsilon(
        world0_scores=scores0,
        world1_scores=scores1,
        delta=DELTA,
        significance=0.1,
        threshold_rule="fixed",
        threshold=0.8,
    )
    assert estimate.fpr_upper == pytest.approx(naive_upper(int((scores1 >= 0.8).sum()), 400, 0.05))
    assert estimate.fnr_upper == pytest.approx(naive_upper(int((scores0 < 0.8).sum()), 400, 0.05))
    mu = norm.ppf(1 - estimate.fpr_upper) - norm.ppf(estimate.fnr_upper)
    assert estimate.mu_lower == pytest.approx(mu)
    assert gdp_delta(mu=mu, epsilon=estimate.epsilon_lower) == pytest.approx(DELTA)
    assert estimate.threshold == 0.8


def test_clopper_pearson_covers_by_its_definition():
    table = clopper_pearson_upper_table(num_trials=50, level=0.01)
    for errors in range(50):
        # The bound is the rate at which so few errors have probability `level`.
        assert binom.cdf(errors, 50, table[errors]) == pytest.approx(0.01, rel=1e-9)
    assert table[50] == 1.0


def test_split_chooses_on_one_half_and_evaluates_on_the_other():
    scores0, scores1 = gaussian_scores(2.0, 1000)
    split = estimate_epsilon(
        world0_scores=scores0, world1_scores=scores1, delta=DELTA, threshold_rule="split"
    )
    # These upper bounds are possible with 500 trials, but not with 1,000.
    table = clopper_pearson_upper_table(num_trials=500, level=0.025)
    assert split.fpr_upper in table
    assert split.fnr_upper in table


def test_split_equals_a_naive_loop_over_one_half_and_bounds_of_the_other():
    rng = np.random.default_rng(6)
    scores0, scores1 = rng.normal(1.5, 1, 75).round(1), rng.normal(0, 1, 52).round(1)
    (choosing0, rest0), (choosing1, rest1) = _halves(scores0, "0"), _halves(scores1, "1")
    assert sorted([*choosing0, *rest0]) == sorted(scores0)
    assert sorted([*choosing1, *rest1]) == sorted(scores1)

    def rates(one: np.ndarray, other: np.ndarray, threshold: float) -> tuple[float, float]:
        fpr = naive_upper(int((other >= threshold).sum()), len(other), 0.05)
        return fpr, naive_upper(int((one < threshold).sum()), len(one), 0.05)

    def strength(threshold: float) -> float:
        fpr, fnr = rates(choosing0, choosing1, threshold)
        return float(norm.ppf(1 - fpr) - norm.ppf(fnr))

    found = estimate_epsilon(
        world0_scores=scores0,
        world1_scores=scores1,
        delta=1e-3,
        significance=0.1,
        threshold_rule="split",
    )
    assert found.threshold == max(sorted(choosing0), key=strength)
    expected = rates(rest0, rest1, found.threshold)
    assert (found.fpr_upper, found.fnr_upper) == pytest.approx(expected)
    assert found.mu_lower == pytest.approx(norm.ppf(1 - expected[0]) - norm.ppf(expected[1]))


@pytest.mark.parametrize("conversion", ["gdp", "direct"])
@pytest.mark.parametrize(
    "rule", ["combined", "calibrated", "rank_sum", "simultaneous", "split", "in_sample"]
)
class TestOrdinaryInputs:
    def bound(self, rule, conversion, scores0, scores1) -> float:
        return estimate_epsilon(
            world0_scores=scores0,
            world1_scores=scores1,
            delta=DELTA,
            threshold_rule=rule,
            conversion=conversion,
        ).epsilon_lower

    def test_equal_scores_give_exactly_zero(self, rule, conversion):
        assert self.bound(rule, conversion, np.ones(500), np.ones(500)) == 0.0

    def test_a_reversed_signal_gives_exactly_zero(self, rule, conversion):
        assert self.bound(rule, conversion, *gaussian_scores(-3.0, 500)) == 0.0

    def test_no_errors_give_the_ceiling(self, rule, conversion):
        bound = self.bound(rule, conversion, np.arange(500) + 1000.0, np.arange(500))
        assert math.isfinite(bound)
        if conversion == "direct" and rule == "in_sample":
            # About log(R / 3.69) with R runs per world.
            assert bound == pytest.approx(math.log(500 / 3.69), abs=0.02)

    def test_infinite_scores_are_ordered_like_others(self, rule, conversion):
        scores0, scores1 = gaussian_scores(4.0, 500)
        infinite, finite = (
            np.where(scores0 > np.median(scores0), high, scores0) for high in (np.inf, 1e6)
        )
        bounds = [self.bound(rule, conversion, scores, scores1) for scores in (infinite, finite)]
        assert bounds[0] == bounds[1]

    def test_an_increasing_map_of_the_scores_changes_nothing(self, rule, conversion):
        scores0, scores1 = gaussian_scores(2.0, 400)
        plain = self.bound(rule, conversion, scores0, scores1)
        assert self.bound(rule, conversion, scores0 * 3 + 7, scores1 * 3 + 7) == plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delta": 0.0}, "delta is 0.0; it must be a finite number above 0 and below 1"),
        ({"delta": "1e-5"}, "delta is '1e-5'"),
        ({"delta": None}, "delta is None"),
        ({"delta": np.array([1e-5, 1e-5])}, "delta is array"),
        ({"significance": 1e-15}, "significance is 1e-15; it must be at least 2e-09"),
        ({"threshold_rule": "fixed", "threshold": "a"}, "needs a threshold"),
        ({"world0_scores": [1j, 2.0]}, "world0_scores must be real numbers, not complex128"),
        ({"world0_scores": np.ma.masked_array([1.0, 2.0], [0, 1])}, "masked"),
        ({"delta": 1.0}, "delta"),
        ({"delta": float("nan")}, "delta"),
        ({"significance": 0.0}, "significance"),
        ({"significance": math.nextafter(0.5, 1)}, "significance is 0.50*1; .* at most 0.5"),
        ({"conversion": "gpd"}, "known: gdp, subsampled_gaussian, direct"),
        ({"threshold_rule": "simultanous"}, "did you mean 'simultaneous'"),
        ({"threshold_rule": "fixed"}, "needs a threshold"),
        ({"threshold": 1.0}, "goes with threshold_rule 'fixed'"),
        ({"conversion": "subsampled_gaussian"}, "needs a Mechanism"),
        ({"conversion": "subsampled_gaussian", "mechanism": 2.0}, "needs a Mechanism"),
        (
            {"mechanism": Mechanism("substitute", sample_rate=0.5, num_steps=1)},
            "goes with 'subsampled_gaussian'",
        ),
        ({"world0_scores": [0.0, math.nan, 1.0]}, r"world0_scores\[1\] is NaN"),
        ({"world1_scores": []}, "world1_scores must be one-dimensional and not empty"),
        ({"world1_scores": [[1.0]]}, "world1_scores must be one-dimensional"),
        ({"world0_scores": ["1", "2"]}, "world0_scores must be real numbers"),
        ({"threshold_rule": "split", "world0_scores": [1.0]}, "at least 2"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    good = {"world0_scores": [1.0, 2.0], "world1_scores": [0.0, 1.0], "delta": DELTA}
    with pytest.raises(InputError, match=message):
        estimate_epsilon(**{**good, **arguments})


def test_the_largest_significance_is_half():
    estimates = [
        estimate_epsilon(
            world0_scores=np.arange(100.0) + 100,
            world1_scores=np.arange(100.0),
            delta=DELTA,
            significance=significance,
        )
        for significance in (0.05, 0.5)
    ]
    assert [estimate.significance for estimate in estimates] == [0.05, 0.5]
    assert estimates[0].epsilon_lower < estimates[1].epsilon_lower


# As argued in docs/validity.md.
PROOFS = {
    **dict.fromkeys(("combined", "calibrated", "rank_sum"), "simulated"),
    **dict.fromkeys(("simultaneous", "split", "fixed", "steinke", "mahloujifar"), "proven"),
    "anytime": "proven",
    "order_statistic": "proven if slots are independent",
    "in_sample": "not valid",
}


@pytest.mark.parametrize("rule", ThresholdRule)
def test_a_rule_may_be_given_by_name_and_says_whether_it_is_valid(rule):
    scores0, scores1 = gaussian_scores(2.0, 100)
    given = {"world0_scores": scores0, "world1_scores": scores1, "delta": DELTA}
    given["threshold"] = 1.0 if rule is ThresholdRule.FIXED else None
    given["conversion"] = "direct" if rule is ThresholdRule.STEINKE else "gdp"
    by_name, by_member = (
        estimate_epsilon(**given, threshold_rule=choice) for choice in (rule.value, rule)
    )
    assert repr(by_name) == repr(by_member)  # `rank_sum` has a threshold of NaN, which equals none
    assert by_name.is_valid is (rule is not ThresholdRule.IN_SAMPLE)
    assert by_name.proof.value == PROOFS[rule.value]
    assert by_name.assumption.startswith("NOT a valid bound") is not by_name.is_valid


def test_the_assumption_is_named():
    scores = {"world0_scores": [1.0, 2.0], "world1_scores": [0.0, 1.0], "delta": DELTA}
    assert "Gaussian" in estimate_epsilon(**scores).assumption
    direct = estimate_epsilon(**scores, conversion="direct")
    assert direct.assumption.startswith("none on the mechanism")
    assert math.isnan(direct.mu_lower)


LOOKS = [(20, 20), (40, 40), (80, 80)]


def test_bounds_at_looks_are_lower_than_alone_and_come_with_the_runs():
    scores0, scores1 = gaussian_scores(2.0, 80)
    options = {"delta": DELTA, "looks": LOOKS}
    bounds = estimate_epsilon_at_looks(world0_scores=scores0, world1_scores=scores1, **options)
    assert [bound.num_looks for bound in bounds] == [3, 3, 3]
    for (size, _), bound in zip(LOOKS, bounds, strict=True):
        alone = estimate_epsilon(
            world0_scores=scores0[:size], world1_scores=scores1[:size], delta=DELTA
        )
        assert alone.num_looks == 1
        assert 0 < bound.epsilon_lower < alone.epsilon_lower
    # What has not come yet changes nothing.
    first = estimate_epsilon_at_looks(
        world0_scores=scores0[:50], world1_scores=scores1[:50], **options
    )
    assert first == bounds[:2]
    # A look has come when both worlds have their scores.
    for of_world in ({"world0_scores": scores0[:20]}, {"world1_scores": scores1[:20]}):
        known = {"world0_scores": scores0, "world1_scores": scores1, **of_world}
        assert estimate_epsilon_at_looks(**known, **options) == bounds[:1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"looks": []}, "looks"),
        ({"looks": [10]}, r"a look is 10; it must be a pair .* such as \(50, 50\)"),
        ({"looks": [(20, 20), (10, 10)]}, "do not decrease"),
        ({"looks": [(0, 10)]}, "looks is 0"),
        ({"threshold_rule": "split"}, "'split' has no bounds that hold jointly"),
    ],
)
def test_bad_looks_are_named(arguments, message):
    good = {"world0_scores": [1.0] * 10, "world1_scores": [0.0] * 10, "delta": DELTA}
    with pytest.raises(InputError, match=message):
        estimate_epsilon_at_looks(**{**good, "looks": [(10, 10)], **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"significance": 0.9}, "significance is 0.9"),
        ({"significance": math.nan}, "significance is nan"),
        ({"significance": 1e-4}, r"at least 0\.001"),
        ({"threshold_rule": "split"}, "the power of threshold_rule 'split' is not known"),
        ({"num_runs": 2}, "num_runs is 2"),
        ({"mechanism": -1.0}, "mu is -1"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_bad_arguments_of_expected_bounds_are_named(arguments, message):
    good = {"mechanism": 1.0, "num_runs": 10, "delta": DELTA}
    with pytest.raises(InputError, match=message):
        expected_bound(**{**good, **arguments})


@pytest.mark.parametrize("mu", [0.0, 0.8, 2.0])
def test_the_p_value_of_one_score_per_world_is_known(mu):
    """The score of world 0 is above that of world 1 with probability Phi(mu / sqrt(2))."""
    known = {"mechanism": mu, "num_simulations": 1_999, "seed": 3}
    above = assess_claim(world0_scores=[1.0], world1_scores=[0.0], **known)
    exact = norm.cdf(mu / math.sqrt(2))
    assert abs(above.p_value - exact) < 4 * math.sqrt(exact * (1 - exact) / 1_999)
    below = assess_claim(world0_scores=[0.0], world1_scores=[1.0], **known)
    assert below.p_value == 1.0


def test_the_least_p_value_is_that_of_the_observed_audit_among_all():
    found = assess_claim(
        world0_scores=np.arange(60.0) + 60,
        world1_scores=np.arange(60.0),
        mechanism=0.5,
        num_simulations=99,
    )
    assert found.p_value == pytest.approx(1 / 100)


def test_the_default_rule_starts_without_what_takes_long_to_import():
    code = (
        "import sys; import dpcanary; scores = [*range(1000)];"
        "dpcanary.estimate_epsilon(world0_scores=scores, world1_scores=scores, delta=1e-5);"
        "sys.exit(', '.join({'scipy.stats', 'numba', 'pandas', 'torch'} & {*sys.modules}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
