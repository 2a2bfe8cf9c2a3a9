"""Bounds from the slots of one run keep their significance, also where slots depend on one another.

With B simulated audits, the allowance is the significance and 3 Monte-Carlo errors, as in
test_coverage.py.
"""

import numpy as np
import pytest
from scipy.optimize import brentq
from simulated import DELTA, SIGNIFICANCE, allowed

from dpcanary import estimate_epsilon_one_run
from dpcanary.gdp import gdp_delta, gdp_epsilon

METHODS = ("steinke", "mahloujifar", "order_statistic")
NUM_AUDITS = 1000
SLOTS = 200
GUESSES = {"positive_guesses": 25, "negative_guesses": 25}


def share_above(
    draw, truth, *, method, conversion=None, num_audits=NUM_AUDITS, delta=DELTA, **guesses
):
    """Share of audits whose bound exceeds the true epsilon.

    `draw` makes scores of the slots from (rng, worlds), where worlds are 1 for in.
    """
    rng = np.random.default_rng(17)
    above = 0
    for _ in range(num_audits):
        worlds = rng.integers(0, 2, SLOTS)
        scores = draw(rng, worlds)
        estimate = estimate_epsilon_one_run(
            world0_scores=scores[worlds == 1],
            world1_scores=scores[worlds == 0],
            delta=delta,
            significance=SIGNIFICANCE,
            method=method,
            conversion=conversion,
            **guesses,
        )
        above += estimate.epsilon_lower > truth + 1e-9
    return above / num_audits


def independent(mu):
    return lambda rng, worlds: rng.normal((worlds - 0.5) * mu, 1.0)


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("method", METHODS)
def test_independent_slots(method, mu):
    truth = gdp_epsilon(mu=mu, delta=DELTA)
    assert share_above(independent(mu), truth, method=method, **GUESSES) <= allowed(NUM_AUDITS)


@pytest.mark.parametrize("method", METHODS)
def test_pairs(method):
    """One record of each pair is in, by a fair coin: without signal every bound is 0."""
    rng = np.random.default_rng(11)
    above = 0
    for _ in range(NUM_AUDITS):
        first, second = rng.standard_normal((2, SLOTS))
        estimate = estimate_epsilon_one_run(
            world0_scores=first, world1_scores=second, delta=DELTA, method=method, num_guesses=50
        )
        above += estimate.epsilon_lower > 0
    assert above / NUM_AUDITS <= allowed(NUM_AUDITS)


@pytest.mark.parametrize("method", METHODS)
def test_numbers_of_guesses_that_are_fixed_beforehand_may_be_many(method):
    numbers = [2, 5, 10, 20, 40, 60, 100]
    several = {"positive_guesses": numbers, "negative_guesses": numbers}
    assert share_above(independent(0.0), 0.0, method=method, **several) <= allowed(NUM_AUDITS)


def test_the_best_of_many_numbers_is_not_valid_uncorrected():
    """What published sweeps do: without signal, they report leakage in every fourth audit."""
    rng = np.random.default_rng(19)
    num_audits, above = 300, 0
    for _ in range(num_audits):
        first, second = rng.standard_normal((2, SLOTS))
        bounds = [
            estimate_epsilon_one_run(
                world0_scores=first,
                world1_scores=second,
                delta=DELTA,
                method="steinke",
                num_guesses=number,
            ).epsilon_lower
            for number in range(5, SLOTS + 1, 5)
        ]
        above += max(bounds) > 0
    assert above / num_audits > 0.15


def correlated(mu, correlation):
    """Gaussian noise that the slots share, with the correlation given between any two.

    Who knows all scores and all other worlds can subtract most of the shared noise. So the
    mechanism is mu-GDP for each slot, with mu over the deviation of the noise that is left.
    """

    def draw(rng, worlds):
        noise = np.sqrt(1 - correlation) * rng.standard_normal(SLOTS)
        return (worlds - 0.5) * mu + noise + np.sqrt(correlation) * rng.standard_normal()

    precision = np.linalg.inv(np.eye(SLOTS) * (1 - correlation) + correlation)
    return draw, mu * np.sqrt(precision[0, 0])


@pytest.mark.parametrize("method", ["steinke", "mahloujifar"])
@pytest.mark.parametrize("correlation", [0.2, 0.8])
def test_correlated_noise(method, correlation):
    draw, mu = correlated(1.0, correlation)
    truth = gdp_epsilon(mu=mu, delta=DELTA)
    assert share_above(draw, truth, method=method, **GUESSES) <= allowed(NUM_AUDITS)


CLEAR, BLURRED = 4.0, 0.1


def one_fate(rng, worlds):
    """A coin that all slots share decides whether all are clear or all are blurred."""
    return rng.normal((worlds - 0.5) * rng.choice([CLEAR, BLURRED]), 1.0)


def truth_of_one_fate() -> float:
    """The epsilon of a slot: its delta is the mean of those of both fates, as the coin is seen."""

    def excess(epsilon):
        deltas = [gdp_delta(mu=mu, epsilon=epsilon) for mu in (CLEAR, BLURRED)]
        return sum(deltas) / 2 - DELTA

    return brentq(excess, 0.1, 100)


@pytest.mark.parametrize("method", ["steinke", "mahloujifar"])
def test_slots_of_one_fate(method):
    truth = truth_of_one_fate()
    rate = share_above(one_fate, truth, method=method, conversion="direct", **GUESSES)
    assert rate <= allowed(NUM_AUDITS)


def all_or_nothing(rng, worlds):
    """A coin that all slots share decides whether all worlds are revealed or none is."""
    return rng.standard_normal(SLOTS) + 100 * (worlds - 0.5) * rng.integers(0, 2)


@pytest.mark.parametrize(
    ("method", "breaks"), [("steinke", False), ("mahloujifar", False), ("order_statistic", True)]
)
def test_what_is_assumed_of_slots(method, breaks):
    """Each slot is (0, .5)-DP; but if one is revealed, all are."""
    rate = share_above(
        all_or_nothing,
        truth=0.0,
        method=method,
        conversion="direct",
        num_audits=200,
        delta=0.5,
        positive_guesses=SLOTS // 2,
        negative_guesses=SLOTS // 2,
    )
    assert rate > 0.3 if breaks else rate <= allowed(200)
