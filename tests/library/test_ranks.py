"""Bounds from ranks of secrets: closed forms, naive twins, proofs in numbers, and refusals."""

from itertools import product
from math import exp, log, log2

import numpy as np
import pytest
from scipy.optimize import brentq, linprog
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpcanary import Adjacency, InputError, Mechanism
from dpcanary.accounting import gdp_epsilon, trade_off_curve
from dpcanary.estimation import assess_claim_from_ranks, check_uniform_ranks
from dpcanary.estimation.estimation_settings import RankRule
from dpcanary.estimation.families import GDP, direct_family
from dpcanary.estimation.ranks import rank_laws, rank_methods
from dpcanary.estimation.ranks.rank_bound import estimate_epsilon_from_ranks, exposure_lower_bound
from dpcanary.estimation.ranks.rank_laws import Lists, curve_of_family
from dpcanary.estimation.ranks.rank_methods import RANK_RULES, GuessedSecrets

DELTA = 1e-5
SUBSTITUTE = Adjacency.SUBSTITUTE


def bound(ranks, k, **options) -> float:
    options = {"delta": DELTA, **options}
    return estimate_epsilon_from_ranks(ranks=ranks, num_candidates=k, **options).epsilon_lower


def chance(curve, k: int, r: int, adjacency=SUBSTITUTE) -> float:
    return float(rank_laws.largest_chances(curve, [r], Lists(k, r, adjacency))[0])


@pytest.mark.parametrize(("k", "r"), [(2, 1), (10, 1), (10, 3), (1000, 1), (1000, 400), (10**6, 7)])
def test_the_largest_chance_solves_its_equation(k, r):
    """Under add/remove adjacency it is the power at a blind guess."""
    for theta in (0.0, 0.3, 1.0, 4.0):
        curve = curve_of_family(GDP, theta)
        p = chance(curve, k, r)
        assert (k - r) / (k - 1) * p == pytest.approx(ndtr(theta + ndtri(r / (k - 1) * (1 - p))))
        of_membership = chance(curve, k, r, Adjacency.ADD_REMOVE)
        assert of_membership == pytest.approx(ndtr(theta + ndtri(r / k)), rel=1e-9)
        odds = r * exp(theta) / (k - r)
        p = chance(curve_of_family(direct_family(1e-300), theta), k, r)
        assert p == pytest.approx(odds / (1 + odds), rel=1e-9)


@pytest.mark.parametrize("k", [10, 10_000, 10**6])
def test_one_secret_has_a_closed_form(k):
    """(epsilon, 0): exp(epsilon) is tau (k - r) / (r (1 - tau)); and Gaussian curves."""
    tau = 0.05
    for r in (1, 2, k // 50 + 1):
        epsilon, mu, of_membership = 0.0, 0.0, 0.0
        if r < tau * k:
            epsilon = max(0.0, log((tau * (k - r) - DELTA * (k - 1)) / (r * (1 - tau))))
            mu = max(0.0, -ndtri(r * (1 - tau) / (k - 1)) - ndtri(1 - (k - r) * tau / (k - 1)))
            of_membership = log((tau - DELTA) * k / r)  # without the record, a guess is blind
        assert bound([r], k) == pytest.approx(epsilon, abs=1e-9)
        assert bound([r], k, adjacency="add_remove") == pytest.approx(of_membership, abs=1e-9)
        expected = gdp_epsilon(mu=mu, delta=DELTA)
        assert bound([r], k, conversion="gdp") == pytest.approx(expected, abs=1e-9)
        exposure = {"exposure": log2(k) - log2(r), "num_candidates": k}
        assert exposure_lower_bound(**exposure, delta=DELTA) == pytest.approx(epsilon, abs=1e-9)
        if r == 1:
            for rule in RankRule:
                assert bound([1], k, rule=rule) == pytest.approx(epsilon, abs=3e-6), rule
            of_recursion = bound([1], k, rule="mahloujifar", conversion="gdp")
            assert of_recursion == pytest.approx(expected, rel=1e-3)


def largest_probability(m, g, c, k, r, epsilon) -> float:
    """The largest P(c or more of g guesses are right) that (epsilon, 0)-DP of m secrets allows."""
    own, other, counts, rows = (k - r) / (k - 1), r / (k - 1), np.arange(g + 1), []
    for j in range(1, c + 1):
        right = own * counts * (counts >= j)
        wrong = other * (g - counts) * (counts >= j - 1)
        # 1 - f(y) is the smaller of exp(eps) y and 1 - exp(-eps) (1 - y).
        rows.append((right - exp(epsilon) * wrong, 0.0))
        rows.append((right - exp(-epsilon) * wrong, m * (1 - exp(-epsilon))))
    sides, limits = zip(*rows, strict=True)
    aim = -(counts >= c).astype(float)
    return -linprog(aim, A_ub=sides, b_ub=limits, A_eq=[np.ones(g + 1)], b_eq=[1.0]).fun


@pytest.mark.parametrize(("m", "g", "k", "r"), [(6, 6, 4, 1), (5, 3, 10, 2), (8, 8, 3, 2)])
def test_recursion_gives_the_optimum_of_its_linear_programme(m, g, k, r):
    curve = curve_of_family(direct_family(1e-300), 0.8)
    for c in range(1, g + 1):
        largest = largest_probability(m, g, c, k, r, 0.8)
        secrets = GuessedSecrets(np.ones(m, np.int64), Lists(k, r, SUBSTITUTE), g, c)
        p_value = RANK_RULES["mahloujifar"].p_value(secrets, curve)
        assert p_value == pytest.approx(largest, rel=5e-3)
        assert p_value >= largest * (1 - 1e-6)
    estimate = estimate_epsilon_from_ranks(
        ranks=np.where(np.arange(m) < g, r, k), num_candidates=k, delta=1e-300, significance=0.1,
        rule="mahloujifar", list_size=r, num_guesses=g, confidences=-np.arange(m),
    )  # fmt: skip
    assert estimate.num_correct == g
    largest = largest_probability(m, g, g, k, r, estimate.epsilon_lower)
    assert largest == pytest.approx(0.1, rel=5e-3)


def test_steinke_holds_for_a_mechanism_that_fails_on_purpose():
    """Randomised response that, with probability delta a slot, releases the secret."""
    k, r, m, epsilon, delta = 5, 1, 12, 0.7, 0.01
    q = 1 / (1 + (k - 1) * exp(-epsilon))
    right = delta + (1 - delta) * q
    curve = curve_of_family(direct_family(delta), epsilon)
    for c in range(1, m + 1):
        secrets = GuessedSecrets(np.ones(m, np.int64), Lists(k, r, SUBSTITUTE), m, c)
        bounded = RANK_RULES["steinke"].p_value(secrets, curve)
        assert bounded >= binom.sf(c - 1, m, right)
        assert bounded >= binom.sf(c - 1, m, q)


def test_dependence_costs_and_more_right_guesses_show_more():
    ranks, shown = [[1] * right + [50] * (100 - right) for right in range(0, 101, 20)], {}
    for rule in ("mahloujifar", "steinke", "count"):
        shown[rule] = bounds = [bound(of_audit, 100, rule=rule) for of_audit in ranks]
        assert bounds == sorted(bounds)
        assert bounds[0] == 0.0
        assert bounds[-1] > 6
    assert (np.array(shown["mahloujifar"]) <= np.array(shown["count"]) + 1e-6).all()


def test_several_sizes_share_the_significance_and_guesses_are_chosen_by_confidence_alone():
    ranks = np.repeat([1, 4, 80], [10, 40, 50])
    options = {"num_candidates": 100, "delta": DELTA}
    together = estimate_epsilon_from_ranks(ranks=ranks, list_size=[1, 5], **options)
    own = {"rule": "mahloujifar", "significance": 0.025}
    each = [bound(ranks, 100, list_size=size, **own) for size in (1, 5)]
    assert together.epsilon_lower == max(each)
    assert (together.list_size, together.num_choices, together.significance) == (5, 2, 0.05)
    chosen = estimate_epsilon_from_ranks(
        ranks=[1, 9, 1, 9], num_guesses=2, confidences=[0.9, 0.1, 0.8, 0.2], **options
    )
    assert (chosen.num_guesses, chosen.num_correct, chosen.num_secrets) == (2, 2, 4)


def test_the_law_of_sums_is_exact():
    rng = np.random.default_rng(0)
    k = 10
    weights, thresholds = rank_methods.exposure_weights(np.arange(1, k + 1), k)
    assert (np.diff(weights) <= 0).all()
    for weight, rank in zip(weights, range(1, k + 1), strict=True):
        assert weight == sum(rank <= threshold for threshold in thresholds) - 1
    # All outcomes of three secrets with uniform ranks.
    for ranks in rng.integers(1, k + 1, (5, 3)):
        sums = [sum(weights[list(outcome)]) for outcome in product(range(k), repeat=3)]
        observed = weights[ranks - 1]
        share = np.mean(np.array(sums) >= observed.sum())
        tail = rank_methods.tail_of_sum(observed, thresholds / k)
        assert tail == pytest.approx(share, abs=1e-9)
    # The error of the transform grows with the number of secrets, and is covered.
    assert rank_methods.tail_of_sum(np.ones(50_000, np.int64), np.array([1.0, 0.1])) >= 5e-11


def test_p_values_of_claims_meet_the_bounds_and_claims_that_are_not_clear_are_refused():
    ranks = np.minimum(np.random.default_rng(2).geometric(0.2, 100), 1000)
    for rule in RankRule:
        rule_ranks = [1] if rule is RankRule.SINGLE else ranks
        shown = bound(rule_ranks, 1000, rule=rule)
        arguments = {"ranks": rule_ranks, "num_candidates": 1000, "rule": rule, "delta": DELTA}
        for change, is_refuted in ((-0.05, True), (0.05, False)):
            p_value = assess_claim_from_ranks(**arguments, epsilon=shown + change).p_value
            assert (p_value < 0.05) is is_refuted
    for claim, words in (
        ({}, "give the claim"),
        ({"epsilon": 1.0, "delta": DELTA, "list_size": [1, 2]}, "2 list sizes; a claim is tested"),
    ):
        with pytest.raises(InputError, match=words):
            assess_claim_from_ranks(ranks=[1, 2], num_candidates=10, **claim)


def test_claims_of_exact_curves():
    mechanism = Mechanism("substitute", sample_rate=0.1, num_steps=50, noise_multiplier=1.0)
    curve = trade_off_curve(mechanism)
    p = brentq(lambda p: p - 1 + float(curve.fnr((1 - p) / 99)), 0.01, 1.0)
    test = assess_claim_from_ranks(ranks=[1], num_candidates=100, mechanism=mechanism)
    assert test.p_value == pytest.approx(p, rel=1e-6)
    assert chance(rank_laws.curve_of_claim(1.0), 2, 1) == pytest.approx(ndtr(0.5), rel=1e-9)
    options = {"conversion": "subsampled_gaussian", "mechanism": mechanism, "rule": "count"}
    assert bound([1] * 200, 100, **options) > curve.epsilon(DELTA)


def test_ranks_that_are_not_uniform_are_seen_and_uniform_ones_pass():
    all_ranks = np.arange(1, 1001)
    for ranks, small in (
        (all_ranks // 3 + 1, "p_low"), (1000 - all_ranks // 3, "p_high"),
        (np.repeat([480, 520], 500), "p_shape"),
    ):  # fmt: skip
        check = check_uniform_ranks(ranks=ranks, num_candidates=1000)
        assert max(check.p_value, getattr(check, small)) < 1e-6
    assert check_uniform_ranks(ranks=all_ranks, num_candidates=1000).p_value > 0.5
    rng = np.random.default_rng(4)
    for k in (2, 10, 10**6):
        draws = rng.integers(1, k + 1, (200, 50))
        p_values = [check_uniform_ranks(ranks=ranks, num_candidates=k).p_value for ranks in draws]
        assert np.mean(np.array(p_values) < 0.05) <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


SAMPLED = Mechanism("add_remove", sample_rate=0.1, num_steps=10)
EXACT = {"conversion": "subsampled_gaussian"}
TWO = {"ranks": [1, 2]}


@pytest.mark.parametrize(("options", "words"), [
    ({"ranks": [0]}, r"ranks\[0\] is 0"),
    ({"ranks": [1, 11]}, r"ranks\[1\] is 11"),
    ({"ranks": [1.5]}, r"ranks\[0\] is 1.5"),
    ({"ranks": [float("nan")]}, r"ranks\[0\] is nan"),
    ({"ranks": []}, "one for each secret"),
    ({"ranks": [[1]]}, "one for each secret"),
    ({"ranks": ["1"]}, "whole numbers"),
    ({"num_candidates": 1}, "at least 2"),
    (TWO | {"rule": "single"}, "for one secret"),
    ({"rule": "bits", "list_size": 2}, "counts ranks"),
    ({"rule": "count", "list_size": 10}, "below num_candidates"),
    ({"rule": "count", "num_guesses": 2}, "there are 1 secrets"),
    (TWO | {"num_guesses": 1}, "confidences must say"),
    (TWO | {"num_guesses": 1, "confidences": [2.0, 1.0], "rule": "count"}, "this rule needs all"),
    (TWO | {"num_guesses": 1, "confidences": [1.0]}, "1 confidences and 2"),
    (TWO | {"list_size": [1, 2], "num_guesses": [1, 2, 2]}, "belong together"),
    (TWO | {"adjacency": "add_remove"}, "substitute adjacency alone"),
    ({"rule": "steinke", "conversion": "gdp"}, "has no conversion 'gdp'"),
    (EXACT, "needs a Mechanism"),
    (EXACT | {"mechanism": SAMPLED}, "give both the same"),
    (EXACT | {"mechanism": SAMPLED.under("substitute"), "num_candidates": 10**8}, "random subset"),
])  # fmt: skip
def test_wrong_arguments_are_named(options, words):
    defaults = {"ranks": [1], "num_candidates": 10, "delta": DELTA}
    with pytest.raises(InputError, match=words):
        estimate_epsilon_from_ranks(**defaults | options)
