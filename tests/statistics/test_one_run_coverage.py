"""Bounds from the slots of one run keep their significance, also where slots depend on one another.

test_coverage.py is about independent slots.
"""

import numpy as np
import pytest
from sampling import exhaustive
from simulated import DELTA, allowed, bound_of_guesses

from dpcanary.core.gdp import gdp_epsilon
from dpcanary.estimation.one_run.slot_guesses import guess_slots
from dpcanary.estimation.rule_catalogue import RULES

METHODS = [rule for rule, entry in RULES.items() if entry.guesses]
ANY_DEPENDENCE = [rule for rule in METHODS if RULES[rule].any_dependence]
SLOTS = 200


def share_above(draw, truth, *, num_audits, num_guesses=25, **options):
    """Share of audits whose bound exceeds the true epsilon.

    `draw` makes scores of the slots from (rng, worlds), where worlds are 1 for in.
    """
    rng, above = np.random.default_rng(17), 0
    each = {"positive_guesses": num_guesses, "negative_guesses": num_guesses}
    for _ in range(num_audits):
        worlds = rng.integers(0, 2, SLOTS)
        scores = draw(rng, worlds)
        guesses = guess_slots(scores[worlds == 1], scores[worlds == 0], **each)
        above += bound_of_guesses(guesses, **options).epsilon_lower > truth + 1e-9
    return above / num_audits


@pytest.mark.parametrize("num_audits", [300, exhaustive(1_000)])
@pytest.mark.parametrize("correlation", [0.2, 0.8])
@pytest.mark.parametrize("method", ANY_DEPENDENCE)
def test_slots_that_share_noise(method, correlation, num_audits):
    """Gaussian noise with the correlation given between any two slots.

    Who knows all scores and all other worlds can subtract most of the shared noise. So the
    mechanism is mu-GDP for each slot, with mu over the deviation of the noise that is left.
    """

    def draw(rng, worlds):
        noise = np.sqrt(1 - correlation) * rng.standard_normal(SLOTS)
        return worlds - 0.5 + noise + np.sqrt(correlation) * rng.standard_normal()

    precision = np.linalg.inv(np.eye(SLOTS) * (1 - correlation) + correlation)
    truth = gdp_epsilon(mu=np.sqrt(precision[0, 0]), delta=DELTA)
    assert share_above(draw, truth, num_audits=num_audits, method=method) <= allowed(num_audits)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_assumed_of_slots(method):
    """Each slot is (0, 0.5)-DP; but a coin that all share decides whether all are revealed."""

    def all_or_nothing(rng, worlds):
        return rng.standard_normal(SLOTS) + 100 * (worlds - 0.5) * rng.integers(0, 2)

    options = {"method": method, "conversion": "direct", "num_audits": 200, "delta": 0.5}
    rate = share_above(all_or_nothing, 0.0, num_guesses=SLOTS // 2, **options)
    assert rate <= allowed(200) if method in ANY_DEPENDENCE else rate > 0.3
