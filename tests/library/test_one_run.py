"""Bounds from guesses in one run: published values, naive twins, ties, and refusals."""

import time
from dataclasses import replace
from math import exp, inf

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpcanary import InputError, Mechanism, estimate_epsilon, estimate_epsilon_one_run
from dpcanary.accounting import trade_off_curve
from dpcanary.estimation.conversion_families import family_of
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.one_run.guess_methods import order_statistic_p_value
from dpcanary.estimation.one_run.one_run_bound import epsilon_of_guesses
from dpcanary.estimation.one_run.slot_guesses import (
    Guesses,
    guess_pairs,
    guess_slots,
    slot_dependence,
)
from dpcanary.estimation.rule_catalogue import RULES
from dpcanary.figures import models_trained
from dpcanary.figures.notes import slots_in_words
from dpcanary.papers.boglioni import canary_sets
from dpcanary.reports.headline import bound_sentences

DELTA = 1e-5


def bound(slots: int, guessed: int, right: int, **options) -> float:
    options = {"delta": DELTA, **options}
    return epsilon_of_guesses(Guesses(slots, guessed, right), **options).epsilon_lower


METHODS = [rule for rule, entry in RULES.items() if entry.guesses]


def test_published_bounds():
    for guesses, method, conversion, epsilon in (
        ((1000, 500, 260), "steinke", "direct", 0.0),
        ((1000, 500, 300), "steinke", "direct", 0.251),
        ((1000, 500, 450), "steinke", "direct", 1.946),
        ((500, 125, 100), "mahloujifar", "direct", 0.990),
        ((500, 125, 100), "mahloujifar", "gdp", 1.683),
        ((500, 500, 300), "mahloujifar", "gdp", 0.520),
    ):
        own = bound(*guesses, method=method, conversion=conversion)
        error = 5e-4 if method == "steinke" else 6e-4
        assert own == pytest.approx(epsilon, abs=error), guesses
    # PrivacyGuard searches a grid of noise, so its printed value is a little too small.
    assert bound(100, 80, 70, delta=1e-6, method="mahloujifar") == pytest.approx(3.2906, rel=2e-3)


def naive_steinke(guesses: Guesses, delta: float) -> float:
    slots, guessed, right = vars(guesses).values()

    def p_value(epsilon):
        rate = exp(epsilon) / (1 + exp(epsilon))
        tails = [float(binom.sf(right - i - 1, guessed, rate)) for i in range(slots + 1)]
        steps = [(tails[i] - tails[0]) / i for i in range(1, slots + 1)]
        return tails[0] + 2 * slots * delta * max(steps)

    return brentq(lambda epsilon: p_value(epsilon) - 0.05, 0, 20) if p_value(0) < 0.05 else 0.0


def naive_mahloujifar(guesses: Guesses, inverse) -> float:
    slots, guessed, right = vars(guesses).values()

    def is_refuted(theta):
        r, h = 0.05 * right / slots, 0.05 * (guessed - right) / slots
        for i in range(right - 1, -1, -1):
            higher = max(h, inverse(theta, min(r, 1.0)))
            r, h = r + i / (guessed - i) * (higher - h), higher
        return r + h >= guessed / slots

    low, high = 0.0, 20.0
    while is_refuted(0.0) and high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def gaussian_inverse(mu, x):
    return float(ndtr(ndtri(x) - mu))


def direct_inverse(epsilon, x):
    """The y with min(e^eps y + delta, 1 - e^-eps (1 - delta - y)) = x."""
    return max((x - DELTA) * exp(-epsilon), 1 - DELTA - exp(epsilon) * (1 - x), 0.0)


COUNTS = ((40, 40, 33), (40, 10, 10), (200, 60, 52), (1000, 500, 333), (1000, 100, 49), (1, 1, 1))


@pytest.mark.parametrize("counts", COUNTS)  # of slots, guesses, and right ones
def test_recursions_equal_their_naive_twins(counts):
    guesses = Guesses(*counts)
    # With 1 / (2 delta) slots and more, one failure could reveal several slots.
    for delta in (DELTA, 1e-3):
        estimate = epsilon_of_guesses(guesses, delta=delta, method="steinke")
        assert estimate.epsilon_lower == pytest.approx(naive_steinke(guesses, delta), abs=2e-6)
    own = epsilon_of_guesses(guesses, delta=DELTA, method="mahloujifar").mu_lower
    assert own == pytest.approx(naive_mahloujifar(guesses, gaussian_inverse), rel=2e-4)
    own = epsilon_of_guesses(guesses, delta=DELTA, conversion="direct").epsilon_lower
    assert own == pytest.approx(naive_mahloujifar(guesses, direct_inverse), rel=2e-4)


@pytest.mark.parametrize(
    ("slots", "guessed", "mu"), [(50, 50, 0.8), (50, 12, 0.8), (200, 50, 1.7), (30, 1, 0.5)]
)
def test_the_order_statistics_law_is_that_of_ideal_slots(slots, guessed, mu):
    """Right guesses of the largest ratios, in audits of independent Gaussian slots."""
    rng, audits = np.random.default_rng(5), 20_000
    worlds = rng.choice([-1, 1], (audits, slots))
    scores = rng.normal(worlds * mu / 2, 1.0)
    chosen = np.argsort(-np.abs(scores), axis=1)[:, :guessed]
    right = (np.take_along_axis(scores * worlds, chosen, 1) > 0).sum(1)
    family = family_of(Conversion.GDP, delta=DELTA)
    for quantile in (0.1, 0.5, 0.9, 0.99):
        count = max(int(np.quantile(right, quantile)), 1)
        share = float(np.mean(right >= count))
        error = max(np.sqrt(share * (1 - share) / audits), 1e-4)
        expected = order_statistic_p_value(Guesses(slots, guessed, count), family=family, theta=mu)
        assert abs(expected - share) < 4 * error


def test_the_order_statistic_of_randomised_response():
    """Under (epsilon, 0)-DP every slot is guessed as well as any other, whichever are guessed."""
    expected = binom.sf(70 - 1, 100, 1 / (1 + exp(-0.5)))
    family = family_of(Conversion.DIRECT, delta=1e-300)
    p_value = order_statistic_p_value(Guesses(400, 100, 70), family=family, theta=0.5)
    assert p_value == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_more_right_guesses_prove_more_half_prove_nothing_and_many_slots_are_fast(method):
    bounds = [bound(200, 100, right, method=method) for right in range(0, 101, 5)]
    assert bounds == sorted(bounds)
    assert bounds[:11] == [0.0] * 11
    assert bounds[-1] > 2
    start = time.process_time()
    assert bound(100_000, 50_000, 45_000, method=method) > 2
    assert time.process_time() - start < 2


def test_pairs_are_guessed_by_the_size_of_their_difference_and_slots_from_both_ends():
    """A tie is wrong."""
    ins, outs = [3.0, 1.0, 0.2, 5.0], [0.0, 3.0, 0.1, 5.0]
    assert guess_pairs(ins, outs, num_guesses=2) == Guesses(4, 2, 1)
    assert guess_pairs(ins, outs, num_guesses=4) == Guesses(4, 4, 2)
    assert guess_pairs([inf, inf], [inf, 0.0], num_guesses=2) == Guesses(2, 2, 1)
    ins, outs, ties = [4.0, 3.0, -2.0], [3.5, -1.0], [1.0] * 50
    for slots, positive, negative, guesses in (
        ((ins, outs), 2, 2, Guesses(5, 4, 2)),  # in: 4.0 right, 3.5 wrong; out: -2.0 wrong
        ((ins, outs), 3, 0, Guesses(5, 3, 2)),
        ((ties, ties), 25, 20, Guesses(100, 45, 0)),
    ):
        assert guess_slots(*slots, positive_guesses=positive, negative_guesses=negative) == guesses


def test_several_numbers_share_the_significance():
    rng, numbers = np.random.default_rng(3), [50, 100, 200]
    inputs = {"world0_scores": rng.normal(2, 1, 300), "world1_scores": rng.normal(0, 1, 300)}
    inputs["delta"] = DELTA
    several = estimate_epsilon_one_run(**inputs, significance=0.1, num_guesses=numbers)
    assert several.epsilon_lower == max(
        estimate_epsilon_one_run(**inputs, significance=0.1 / 3, num_guesses=number).epsilon_lower
        for number in numbers
    )
    assert (several.num_choices, several.significance) == (3, 0.1)


def test_exact_curves_of_sampled_training_are_for_worlds_that_are_alike():
    settings = {"sample_rate": 0.25, "noise_multiplier": 1.0, "num_steps": 100}
    exact = {"conversion": "subsampled_gaussian", "mechanism": Mechanism("substitute", **settings)}
    assert bound(500, 125, 110, **exact) == pytest.approx(bound(500, 125, 110), rel=0.1)
    # In a sampled step with little noise, a large sum shows the record; no sum excludes it.
    step = {"sample_rate": 0.1, "noise_multiplier": 0.4, "num_steps": 1}
    curve, rates = trade_off_curve(Mechanism("zero_out", **step)), np.array([0.05, 0.3])
    assert (np.abs(curve.fnr(curve.fnr(rates)) - rates) > 0.01).all()  # not its own inverse
    for adjacency in ("add_remove", "zero_out"):
        with pytest.raises(InputError, match="differ between the worlds"):
            bound(400, 100, 80, **exact | {"mechanism": Mechanism(adjacency, **step)})


SCORES = {"world0_scores": [2.0, 1.0, 3.0], "world1_scores": [0.0, 1.0, 0.5], "delta": DELTA}


@pytest.mark.parametrize(("options", "message"), [
    ({}, "give num_guesses, or both"),
    ({"positive_guesses": 1}, "give num_guesses, or both"),
    ({"num_guesses": 1, "positive_guesses": 1}, "one or the other"),
    ({"num_guesses": 4}, "there are 3 slots or pairs"),
    ({"num_guesses": 0}, "num_guesses is 0"),
    ({"num_guesses": []}, "num_guesses is empty"),
    ({"num_guesses": 1.5}, "num_guesses is 1.5"),
    ({"num_guesses": 2, "world1_scores": [0.0]}, "3 world0_scores and 1 world1_scores"),
    ({"num_guesses": 2, "world1_scores": [0.0, np.nan, 1.0]}, r"world1_scores\[1\] is NaN"),
    ({"positive_guesses": [1, 2], "negative_guesses": [1]}, "belong together"),
    ({"positive_guesses": -1, "negative_guesses": 2}, "positive_guesses is -1"),
    ({"num_guesses": 2, "method": "split"}, "'split' is no rule of guesses: known: steinke"),
    ({"num_guesses": 2, "method": "steinke", "conversion": "gdp"}, "only 'direct'"),
    ({"num_guesses": 2, "significance": 0.7}, "significance is 0.7"),
    ({"num_guesses": 2, "delta": 0.0}, "delta is 0"),
])  # fmt: skip
def test_refusals(options, message):
    with pytest.raises(InputError, match=message):
        estimate_epsilon_one_run(**(SCORES | options))


def test_slots_of_different_runs_look_independent():
    rng = np.random.default_rng(29)
    num_checks, refuted = 400, 0
    for _ in range(num_checks):
        worlds = rng.integers(0, 2, (8, 60))
        scores = rng.normal(2.0 * (1 - worlds)) + np.linspace(-3, 3, 60)  # a drift of its own each
        refuted += slot_dependence(scores=scores, worlds=worlds).p_value < 0.05
    assert refuted / num_checks < 0.05 + 3 * np.sqrt(0.05 * 0.95 / num_checks)


def test_slots_that_share_noise_or_a_fate_are_found_out():
    rng = np.random.default_rng(31)
    worlds, noise = rng.integers(0, 2, (200, 60)), rng.normal(size=(200, 60))
    shared = worlds + np.sqrt(0.2) * rng.normal(size=(200, 1)) + np.sqrt(0.8) * noise
    of_noise = slot_dependence(scores=shared, worlds=worlds)
    assert of_noise.correlation == pytest.approx(0.2, abs=0.06)
    fates = rng.choice([0.3, 3.0], (20, 1)) * noise[:20] + np.linspace(-9, 9, 60)
    of_fate = slot_dependence(scores=fates, worlds=worlds[:20])
    assert of_fate.correlation_of_sizes > 0.2
    assert max(of_noise.p_value, of_fate.p_value) < 1e-6


COINS = np.array([[0, 1, 1], [1, 0, 1]])


@pytest.mark.parametrize(("scores", "worlds", "message"), [
    *((np.zeros(shape), np.zeros(shape, int), "two of each") for shape in ((1, 5), (5, 1), (5,))),
    ([[0.0, 1.0], [2.0]], COINS, "must be arrays of numbers"),
    (COINS, np.where(COINS, "in", "out"), "must be arrays of numbers"),
    (COINS, 1 - 2 * COINS, "worlds holds -1; give 0 or 1"),
    (COINS, np.where(COINS, 1.0, np.nan), "worlds holds nan; give 0 or 1"),
    (np.where(COINS, 1.0, np.nan), COINS, r"scores\[0, 0\] is nan"),
    (np.where(COINS, -np.inf, 1.0), COINS, r"scores\[0, 1\] is -inf"),
])  # fmt: skip
def test_a_check_of_dependence_refuses_what_it_cannot_compare(scores, worlds, message):
    with pytest.raises(InputError, match=message):
        slot_dependence(scores=scores, worlds=worlds)


@pytest.mark.parametrize("any_dependence", [True, False])
def test_what_a_new_rule_assumes_is_the_same_everywhere(any_dependence, monkeypatch):
    """In its bound, in figures, in notes, on the command line, and in the methods text."""
    fields = {"any_dependence": any_dependence, "sentence": "a new way", "label": "New"}
    monkeypatch.setitem(RULES, "new", replace(RULES["mahloujifar"], **fields))
    slots = "any dependence" if any_dependence else "independent slots"
    bound = epsilon_of_guesses(Guesses(500, 125, 100), delta=DELTA, method="new")
    assert bound.epsilon_lower == pytest.approx(1.683, abs=5e-4)
    assert ("depend on one another in any way" in bound.assumption) == any_dependence
    assert canary_sets._title("new") == f"New ({slots})"
    row = {"num_slots": 500, "threshold_rule": "new", "conversion": "gdp", "slot": np.nan}
    [look] = models_trained._looks(pd.DataFrame([row])).values()
    assert look["label"] == f"500 canaries in each model: New ({slots})"
    assert bound_sentences(["new"], []) == ["Threshold rule new: a new way."]
    scores = {"world0_scores": np.arange(40.0), "world1_scores": np.arange(40.0) - 9}
    estimate_bound = estimate_epsilon(**scores, delta=DELTA, threshold_rule="new")
    needs_more = "what is seen of one slot says nothing" in estimate_bound.assumption
    assert needs_more != any_dependence
    # The rule's own words say it.
    assert "taken as independent" not in slots_in_words(pd.DataFrame([row]))
    monkeypatch.setitem(RULES, "new", replace(RULES["split"], sentence=""))
    assert bound_sentences(["new"], []) == ["Threshold rule new: describe it here."]
