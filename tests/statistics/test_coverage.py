"""Rules claimed valid keep their significance; the one that is not does not.

Scores are Gaussian with known mu, so the truth is mu itself for conversion `gdp` and its epsilon
for `direct`. With B simulated audits and exceedance rate p, the Monte-Carlo error is
sqrt(p (1 - p) / B); the allowance is 3 of them at p = significance.
"""

import numpy as np
import pytest

from dpcanary import estimate_epsilon
from dpcanary.gdp import gdp_epsilon

SIGNIFICANCE = 0.05
DELTA = 1e-5
NUM_AUDITS = 2000
ALLOWED = SIGNIFICANCE + 3 * np.sqrt(SIGNIFICANCE * (1 - SIGNIFICANCE) / NUM_AUDITS)


def exceedance(*, mu: float, runs_per_world: int, num_audits: int, seed: int, **rule) -> float:
    """Share of simulated audits whose bound exceeds the truth."""
    truth = gdp_epsilon(mu=mu, delta=DELTA)
    rng = np.random.default_rng([seed, runs_per_world, int(10 * mu)])
    above = 0
    for _ in range(num_audits):
        estimate = estimate_epsilon(
            world0_scores=rng.normal(mu, 1.0, runs_per_world),
            world1_scores=rng.normal(0.0, 1.0, runs_per_world),
            delta=DELTA,
            significance=SIGNIFICANCE,
            **rule,
        )
        above += estimate.epsilon_lower > truth + 1e-9
    return above / num_audits


@pytest.mark.parametrize("conversion", ["gdp", "direct"])
@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("rule", ["simultaneous", "split", "fixed"])
def test_valid_rules_keep_their_significance(rule, mu, conversion):
    threshold = {"threshold": mu / 2} if rule == "fixed" else {}
    rate = exceedance(
        mu=mu,
        runs_per_world=1250,
        num_audits=NUM_AUDITS,
        seed=1,
        threshold_rule=rule,
        conversion=conversion,
        **threshold,
    )
    assert rate <= ALLOWED


@pytest.mark.parametrize("mu", [0.0, 1.0, 4.0])
def test_simultaneous_keeps_its_significance_at_many_runs(mu):
    rate = exceedance(
        mu=mu, runs_per_world=25_000, num_audits=500, seed=2, threshold_rule="simultaneous"
    )
    assert rate <= ALLOWED


def test_in_sample_does_not():
    num_audits = 300
    rate = exceedance(
        mu=1.0, runs_per_world=25_000, num_audits=num_audits, seed=3, threshold_rule="in_sample"
    )
    error = np.sqrt(rate * (1 - rate) / num_audits)
    assert rate - 3 * error > SIGNIFICANCE


def test_split_keeps_its_significance_on_sorted_scores():
    """Runs may arrive in any order; a cut in the middle of sorted scores would be far off."""
    rng = np.random.default_rng(4)
    above = sum(
        estimate_epsilon(
            world0_scores=np.sort(rng.normal(1.0, 1.0, 1250)),
            world1_scores=np.sort(rng.normal(0.0, 1.0, 1250)),
            delta=DELTA,
            threshold_rule="split",
        ).mu_lower
        > 1.0
        for _ in range(NUM_AUDITS)
    )
    assert above / NUM_AUDITS <= ALLOWED


@pytest.mark.parametrize(("mu", "tightness"), [(1.0, 0.80), (2.0, 0.88)])
def test_simultaneous_is_tight(mu, tightness):
    """mu_lower / mu averages .81 at mu 1 and .89 at mu 2 for a band of this kind."""
    rng = np.random.default_rng(5)
    ratios = [
        estimate_epsilon(
            world0_scores=rng.normal(mu, 1.0, 1250),
            world1_scores=rng.normal(0.0, 1.0, 1250),
            delta=DELTA,
        ).mu_lower
        / mu
        for _ in range(200)
    ]
    assert np.mean(ratios) > tightness
