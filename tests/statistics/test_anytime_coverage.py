"""Rule `anytime` keeps its significance if it is stopped at the worst moment.

An audit fails if the wealth against the true curve ever reaches 1 / significance. The Monte-Carlo
error of a rate of .05 at 300 audits is .013.
"""

import numpy as np
import pytest
from simulated import SIGNIFICANCE, Draw, allowed, estimates_of, gaussian, mapped, transcripts

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.adjacency import Adjacency
from dpcanary.estimation.anytime import EProcess, lines_of_curves
from dpcanary.estimation.calibration.statistics import curve_of
from dpcanary.estimation.families import GDP, Family, direct_family

NUM_AUDITS = 300
NUM_PAIRS = 200


def share_above(curve: np.ndarray, draw: Draw, *, num_pairs: int = NUM_PAIRS) -> float:
    """The share of audits in which the true curve is refuted at any number of pairs."""
    lines = lines_of_curves(np.zeros(1), curve[None])
    refuted = 0
    for audit in range(NUM_AUDITS):
        process = EProcess(lines)
        process.add(*draw(np.random.default_rng([7, audit]), num_pairs, num_pairs))
        refuted += process.largest[0] >= 1 / SIGNIFICANCE
    return refuted / NUM_AUDITS


def curve(family: Family, theta: float) -> np.ndarray:
    return family.curves(np.array([theta]))[0]


def drifting(mu: float) -> Draw:
    """Scores of pairs whose place moves; each pair satisfies G_mu."""

    def draw(rng, n0, n1):
        world0, world1 = gaussian(mu)(rng, n0, n1)
        return world0 + 0.01 * np.arange(n0), world1 + 0.01 * np.arange(n1)

    return draw


def at_the_curve(epsilon: float, delta: float) -> Draw:
    """Scores whose trade-off curve is that of (epsilon, delta)-DP exactly."""

    def draw(rng, n0, n1):
        fpr = rng.random(n1)
        fnr = np.maximum(
            0,
            np.maximum(1 - delta - np.exp(epsilon) * fpr, np.exp(-epsilon) * (1 - delta - fpr)),
        )
        return rng.random(n0), fnr

    return draw


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.5, 4.0])
def test_gaussian_scores(mu):
    assert share_above(curve(GDP, mu), gaussian(mu)) <= allowed(NUM_AUDITS)


@pytest.mark.parametrize("change", [np.round, lambda scores: (scores > 0.4).astype(float)])
def test_scores_of_few_values(change):
    """The attack loses something, but thresholds are learnt fast."""
    rate = share_above(curve(GDP, 1.0), mapped(gaussian(1.0), change))
    assert rate <= allowed(NUM_AUDITS)


def test_scores_that_drift():
    assert share_above(curve(GDP, 1.0), drifting(1.0)) <= allowed(NUM_AUDITS)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (1.0, 0.02), (3.0, 1e-5)])
def test_a_mechanism_at_the_curve_of_epsilon_and_delta(epsilon, delta):
    rate = share_above(curve(direct_family(delta), epsilon), at_the_curve(epsilon, delta))
    assert rate <= allowed(NUM_AUDITS)


@pytest.mark.parametrize("adjacency", [Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE])
def test_subsampled_gaussian(adjacency):
    mechanism = Mechanism(adjacency, sample_rate=0.1, num_steps=12, noise_multiplier=0.6)
    rate = share_above(curve_of(mechanism), transcripts(mechanism), num_pairs=200)
    assert rate <= allowed(NUM_AUDITS)


def test_a_wealth_that_is_a_little_too_large_is_noticed():
    """Against 80 % of the true mu, the wealth does reach 1 / significance."""
    assert share_above(curve(GDP, 1.6), gaussian(2.0)) > 2 * SIGNIFICANCE


@pytest.mark.long
def test_bounds_are_nearly_those_of_a_fixed_number():
    rng = np.random.default_rng(8)
    for mu, least in ((1.0, 0.72), (3.0, 0.87)):
        options = {"num_audits": 40, "threshold_rule": "anytime"}
        found = estimates_of(gaussian(mu), (500, 500), rng, **options)
        mean = np.mean([one.mu_lower for one in found])
        assert least * mu < mean < mu
