"""Bounds from ranks of secrets: closed forms, naive twins, proofs in numbers, and refusals."""

from itertools import permutations, product
from math import exp, log, log2

import numpy as np
import pytest
from scipy.optimize import brentq, linprog
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpcanary import InputError, Mechanism
from dpcanary.accounting import gdp_epsilon, trade_off_curve
from dpcanary.core.adjacency import Adjacency
from dpcanary.estimation import (
    RankRule,
    assess_claim_from_ranks,
    check_uniform_ranks,
    estimate_epsilon_from_ranks,
    exposure_lower_bound,
    ranks_of_truth,
)
from dpcanary.estimation.families import GDP, direct_family
from dpcanary.estimation.ranks.rank_laws import (
    Lists,
    curve_of_claim,
    curve_of_family,
    largest_chances,
)
from dpcanary.estimation.ranks.rank_methods import (
    RANK_RULES,
    GuessedSecrets,
    exposure_weights,
    tail_of_sum,
)

DELTA = 1e-5
SUBSTITUTE = Adjacency.SUBSTITUTE


def bound(ranks, k, **options) -> float:
    options = {"delta": DELTA, **options}
    return estimate_epsilon_from_ranks(ranks=ranks, num_candidates=k, **options).epsilon_lower


def chance(curve, k: int, r: int, adjacency=SUBSTITUTE) -> float:
    [value] = largest_chances(curve, [r], num_candidates=k, adjacency=adjacency)
    return float(value)


@pytest.mark.parametrize(("k", "r"), [(2, 1), (10, 1), (10, 3), (1000, 1), (1000, 400), (10**6, 7)])
def test_the_largest_chance_solves_its_equation(k, r):
    for mu in (0.0, 0.3, 1.0, 4.0):
        found = chance(curve_of_family(GDP, mu), k, r)
        left = (k - r) / (k - 1) * found
        right = ndtr(mu + ndtri(r / (k - 1) * (1 - found)))
        assert left == pytest.approx(right, rel=1e-6)
    for epsilon in (0.0, 0.3, 1.0, 4.0):
        found = chance(curve_of_family(direct_family(1e-300), epsilon), k, r)
        odds = r * exp(epsilon) / (k - r)
        assert found == pytest.approx(odds / (1 + odds), rel=1e-9)


def test_two_values_are_guessed_by_half_of_mu():
    for mu in (0.5, 1.0, 4.0):
        assert chance(curve_of_family(GDP, mu), 2, 1) == pytest.approx(ndtr(mu / 2), rel=1e-9)


def test_the_chance_by_add_remove_is_the_power_at_a_blind_guess():
    curve = curve_of_family(GDP, 1.5)
    found = chance(curve, 100, 3, Adjacency.ADD_REMOVE)
    assert found == pytest.approx(ndtr(1.5 + ndtri(0.03)), rel=1e-9)


def test_no_mechanism_beats_the_chance():
    """Any k distributions on a few outputs, with the (epsilon, 0) that they satisfy."""
    rng = np.random.default_rng(1)
    for k, outputs in ((2, 3), (3, 4), (4, 6)):
        for _ in range(30):
            laws = rng.dirichlet(np.full(outputs, 0.7), k) + 0.01
            laws /= laws.sum(axis=1, keepdims=True)
            epsilon = float(np.log(laws.max(axis=0) / laws.min(axis=0)).max())
            for r in range(1, k):
                # The best list holds the likeliest values of each output.
                best = np.sort(laws, axis=0)[::-1][:r].sum() / k
                curve = curve_of_family(direct_family(1e-300), epsilon)
                assert best <= chance(curve, k, r) * (1 + 1e-9)


def test_lists_that_attain_the_chance_satisfy_the_curve():
    """A random list with the secret in it so often is mu-GDP: the theorem cannot be improved."""
    for mu, k, r in ((1.0, 10, 1), (1.0, 10, 4), (2.5, 50, 10)):
        p = chance(curve_of_family(GDP, mu), k, r)
        # Of two values, the list has one, or both or none, or the other one.
        one, other = (k - r) / (k - 1) * p, r / (k - 1) * (1 - p)
        for fpr, power in ((other, one), (1 - one, 1 - other)):
            assert power <= ndtr(mu + ndtri(fpr)) + 1e-9


@pytest.mark.parametrize("k", [10, 10_000, 10**6])
def test_one_secret_has_a_closed_form(k):
    """(epsilon, 0): exp(epsilon) is tau (k - r) / (r (1 - tau)); and Gaussian curves."""
    for r in (1, 2, k // 50 + 1):
        tau = 0.05
        if r < tau * k:
            expected = max(0.0, log((tau * (k - r) - DELTA * (k - 1)) / (r * (1 - tau))))
        else:
            expected = 0.0
        assert bound([r], k) == pytest.approx(expected, abs=1e-9)
        mu = max(0.0, -ndtri(r * (1 - tau) / (k - 1)) - ndtri(1 - (k - r) * tau / (k - 1)))
        expected = gdp_epsilon(mu=mu, delta=DELTA) if r < tau * k else 0.0
        assert bound([r], k, conversion="gdp") == pytest.approx(expected, abs=1e-9)


def test_one_code_of_six_digits():
    assert bound([1], 10**6, delta=1e-9) == pytest.approx(10.871, abs=1e-3)
    # Without the record, the code would be guessed blindly: log(tau k).
    of_membership = bound([1], 10**6, delta=1e-9, adjacency="add_remove")
    assert of_membership == pytest.approx(log(0.05e6), abs=1e-6)


def test_every_rule_has_the_same_bound_for_one_secret():
    single = bound([1], 10_000)
    for rule in RankRule:
        assert bound([1], 10_000, rule=rule) == pytest.approx(single, abs=3e-6), rule
    assert bound([1], 10_000, rule="mahloujifar", conversion="gdp") == pytest.approx(
        bound([1], 10_000, conversion="gdp"), rel=1e-3
    )


def test_exposure_shows_the_bound_of_its_rank():
    for r in (1, 7, 300):
        exposure = log2(10_000) - log2(r)
        shown = exposure_lower_bound(exposure=exposure, delta=DELTA, num_candidates=10_000)
        assert shown == pytest.approx(bound([r], 10_000), abs=1e-9)
        if shown > 0:
            approximate = log(2) * exposure + log(0.05)
            assert approximate == pytest.approx(shown, abs=0.1)


def naive_mahloujifar(m: int, g: int, c: int, k: int, r: int, refuted) -> float:
    """The recursion for k candidates and lists of r, with the inverse given."""
    own, other = (k - r) / (k - 1), r / (k - 1)
    right, wrong = 0.05 * c / m, 0.05 * (g - c) / m
    for i in range(c - 1, -1, -1):
        higher = max(wrong, refuted(min(own * right, 1.0)) / other)
        right, wrong = right + i / (g - i) * (higher - wrong), higher
    return right + wrong >= g / m


COUNTS = [(40, 40, 20, 10, 1), (100, 30, 12, 50, 1), (60, 60, 50, 10, 4), (1, 1, 1, 1000, 3)]


@pytest.mark.parametrize(("m", "g", "c", "k", "r"), COUNTS)
def test_recursion_equals_its_naive_twin(m, g, c, k, r):
    ranks = np.where(np.arange(m) < c, r, k)
    options = {"rule": "mahloujifar", "list_size": r, "num_guesses": g}
    options["confidences"] = -np.arange(m)
    estimate = estimate_epsilon_from_ranks(
        ranks=ranks, num_candidates=k, delta=DELTA, conversion="gdp", **options
    )

    def refutes(mu):
        return naive_mahloujifar(m, g, c, k, r, lambda x: float(ndtr(ndtri(x) - mu)))

    low, high = 0.0, 10.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    assert estimate.mu_lower == pytest.approx(low, rel=2e-4)
    assert estimate.num_correct == c


@pytest.mark.parametrize(("m", "g", "k", "r"), [(6, 6, 4, 1), (5, 3, 10, 2), (8, 8, 3, 2)])
def test_recursion_gives_the_optimum_of_its_linear_programme(m, g, k, r):
    """The largest P(c or more right) that the constraints allow, for (epsilon, 0)-DP."""
    epsilon, own, other = 0.8, (k - r) / (k - 1), r / (k - 1)
    curve = curve_of_family(direct_family(1e-300), epsilon)
    counts = np.arange(g + 1)
    for c in range(1, g + 1):
        rows = []
        for j in range(1, c + 1):
            right = own * counts * (counts >= j)
            wrong = other * (g - counts) * (counts >= j - 1)
            # 1 - f(y) is the smaller of exp(eps) y and 1 - exp(-eps) (1 - y).
            rows.append((right - exp(epsilon) * wrong, 0.0))
            rows.append((right - exp(-epsilon) * wrong, m * (1 - exp(-epsilon))))
        largest = linprog(
            -(counts >= c).astype(float),
            A_ub=[row for row, _ in rows],
            b_ub=[limit for _, limit in rows],
            A_eq=[np.ones(g + 1)],
            b_eq=[1.0],
        )
        secrets = GuessedSecrets(np.ones(m, np.int64), Lists(k, r, SUBSTITUTE), g, c)
        p_value = RANK_RULES["mahloujifar"].p_value(secrets, curve)
        assert p_value == pytest.approx(-largest.fun, rel=5e-3)
        assert p_value >= -largest.fun * (1 - 1e-6)


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
    for rule in ("mahloujifar", "steinke", "count"):
        shown = [
            bound(np.where(np.arange(100) < c, 1, 50), 100, rule=rule) for c in range(0, 101, 10)
        ]
        assert shown == sorted(shown)
        assert shown[0] == 0.0
        assert shown[-1] > 6
    for c in (20, 60):
        ranks = np.where(np.arange(100) < c, 1, 50)
        assert bound(ranks, 100, rule="mahloujifar") <= bound(ranks, 100, rule="count") + 1e-6


def test_several_sizes_share_the_significance_and_the_best_counts():
    ranks = np.r_[np.ones(10), np.full(40, 4), np.full(50, 80)].astype(int)
    together = estimate_epsilon_from_ranks(
        ranks=ranks, num_candidates=100, delta=DELTA, list_size=[1, 5]
    )
    each = [
        bound(ranks, 100, list_size=size, rule="mahloujifar", significance=0.025) for size in (1, 5)
    ]
    assert together.epsilon_lower == max(each)
    assert (together.list_size, together.num_choices, together.significance) == (5, 2, 0.05)


def test_guesses_are_chosen_by_confidence_alone():
    ranks, confidences = [1, 9, 1, 9], [0.1, 0.9, 0.8, 0.2]
    estimate = estimate_epsilon_from_ranks(
        ranks=ranks, num_candidates=10, delta=DELTA, num_guesses=2, confidences=confidences
    )
    assert (estimate.num_guesses, estimate.num_correct, estimate.num_secrets) == (2, 1, 4)


def test_the_law_of_sums_is_exact():
    rng = np.random.default_rng(0)
    k = 10
    weights, thresholds = exposure_weights(np.arange(1, k + 1), k)
    assert (np.diff(weights) <= 0).all()
    for weight, rank in zip(weights, range(1, k + 1), strict=True):
        assert weight == sum(rank <= threshold for threshold in thresholds) - 1
    # All outcomes of three secrets with uniform ranks.
    for ranks in rng.integers(1, k + 1, (5, 3)):
        sums = [sum(weights[list(one)]) for one in product(range(k), repeat=3)]
        observed = weights[ranks - 1]
        share = np.mean(np.array(sums) >= observed.sum())
        assert tail_of_sum(observed, thresholds / k) == pytest.approx(share, abs=1e-9)
    # The error of the transform grows with the number of secrets, and is covered.
    assert tail_of_sum(np.ones(50_000, np.int64), np.array([1.0, 0.1])) >= 5e-11


def test_p_values_of_claims_meet_the_bounds():
    rng = np.random.default_rng(2)
    ranks = np.minimum(rng.geometric(0.2, 100), 1000)
    for rule in RankRule:
        given = ranks[:1] * 0 + 1 if rule is RankRule.SINGLE else ranks
        shown = bound(given, 1000, rule=rule)
        for change, is_refuted in ((-0.05, True), (0.05, False)):
            test = assess_claim_from_ranks(
                ranks=given, num_candidates=1000, rule=rule, epsilon=shown + change, delta=DELTA
            )
            assert (test.p_value < 0.05) is is_refuted


def test_claims_of_exact_curves():
    mechanism = Mechanism("substitute", sample_rate=0.1, num_steps=50, noise_multiplier=1.0)
    curve = trade_off_curve(mechanism)
    p = brentq(lambda p: p - 1 + float(curve.fnr((1 - p) / 99)), 0.01, 1.0)
    test = assess_claim_from_ranks(ranks=[1], num_candidates=100, mechanism=mechanism)
    assert test.p_value == pytest.approx(p, rel=1e-6)
    assert chance(curve_of_claim(1.0), 2, 1) == pytest.approx(ndtr(0.5), rel=1e-9)
    shown = bound(
        np.ones(200, int), 100, conversion="subsampled_gaussian", mechanism=mechanism, rule="count"
    )
    assert shown > mechanism_epsilon(mechanism)


def mechanism_epsilon(mechanism: Mechanism) -> float:
    return trade_off_curve(mechanism).epsilon(DELTA)


def test_ranks_of_truth_count_ties_against_the_attack():
    """Every order of three scores, two of which are equal."""
    for scores in permutations([1.0, 1.0, 0.0]):
        [rank] = ranks_of_truth(scores=[scores], truth=[0])
        assert rank == (2 if scores[0] == 1.0 else 3)
    assert ranks_of_truth(scores=np.zeros((2, 5)), truth=[0, 4]).tolist() == [5, 5]


@pytest.mark.parametrize(
    ("ranks", "small"),
    [
        (np.arange(1, 1001), None),
        (np.arange(1, 1001) // 3 + 1, "p_low"),
        (1000 - np.arange(1, 1001) // 3, "p_high"),
        (np.r_[np.full(500, 480), np.full(500, 520)], "p_shape"),
    ],
)
def test_ranks_that_are_not_uniform_are_seen(ranks, small):
    check = check_uniform_ranks(ranks=ranks, num_candidates=1000)
    if small is None:
        assert check.p_value > 0.5
    else:
        assert check.p_value < 1e-6
        assert getattr(check, small) < 1e-6


def test_uniform_ranks_pass():
    rng = np.random.default_rng(4)
    for k in (2, 10, 10**6):
        p_values = [
            check_uniform_ranks(ranks=rng.integers(1, k + 1, 50), num_candidates=k).p_value
            for _ in range(200)
        ]
        assert np.mean(np.array(p_values) < 0.05) <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": [0]}, r"ranks\[0\] is 0"),
        ({"ranks": [1, 11]}, r"ranks\[1\] is 11"),
        ({"ranks": [1.5]}, r"ranks\[0\] is 1.5"),
        ({"ranks": [float("nan")]}, r"ranks\[0\] is nan"),
        ({"ranks": []}, "one for each secret"),
        ({"ranks": [[1]]}, "one for each secret"),
        ({"ranks": ["1"]}, "whole numbers"),
        ({"num_candidates": 1}, "at least 2"),
        ({"ranks": [1, 2], "rule": "single"}, "for one secret"),
        ({"rule": "bits", "list_size": 2}, "counts ranks"),
        ({"rule": "count", "list_size": 10}, "below num_candidates"),
        ({"rule": "count", "num_guesses": 2}, "there are 1 secrets"),
        ({"ranks": [1, 2], "num_guesses": 1}, "confidences must say"),
        (
            {"ranks": [1, 2], "num_guesses": 1, "confidences": [2.0, 1.0], "rule": "count"},
            "this rule needs all",
        ),
        ({"ranks": [1, 2], "num_guesses": 1, "confidences": [1.0]}, "1 confidences and 2"),
        ({"ranks": [1, 2], "list_size": [1, 2], "num_guesses": [1, 2, 2]}, "belong together"),
        ({"ranks": [1, 2], "adjacency": "add_remove"}, "substitute adjacency alone"),
        ({"rule": "steinke", "conversion": "gdp"}, "has no conversion 'gdp'"),
        ({"rule": "best"}, "unknown rank rule"),
        ({"conversion": "subsampled_gaussian"}, "needs a Mechanism"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(options, words):
    with pytest.raises(InputError, match=words):
        estimate_epsilon_from_ranks(
            **{"ranks": [1], "num_candidates": 10, "delta": DELTA, **options}
        )


def test_mechanisms_that_do_not_fit_are_named():
    sampled = Mechanism("add_remove", sample_rate=0.1, num_steps=10)
    options = {"conversion": "subsampled_gaussian", "mechanism": sampled, "delta": DELTA}
    with pytest.raises(InputError, match="give both the same"):
        estimate_epsilon_from_ranks(ranks=[1], num_candidates=10, **options)
    options["mechanism"] = sampled.under("substitute")
    with pytest.raises(InputError, match="a random subset"):
        estimate_epsilon_from_ranks(ranks=[1], num_candidates=10**8, **options)
    with pytest.raises(InputError, match="give the claim"):
        assess_claim_from_ranks(ranks=[1], num_candidates=10)
    with pytest.raises(InputError, match="2 list sizes; a claim is tested with one"):
        assess_claim_from_ranks(
            ranks=[1, 2], num_candidates=10, epsilon=1.0, delta=DELTA, list_size=[1, 2]
        )
