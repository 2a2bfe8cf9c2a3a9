"""What an audit is expected to prove agrees with audits that are simulated independently."""

import numpy as np
import pytest
from simulated import DELTA, Draw, estimates_of, gaussian, transcripts

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.estimation.power import expected_bound, runs_needed
from dpcanary.gdp import gdp_epsilon


def simulated_bounds(draw: Draw, *, per_world: int, num_audits: int, seed, **options):
    rng = np.random.default_rng(seed)
    sizes = (per_world, per_world)
    estimates = estimates_of(draw, sizes, rng, num_audits=num_audits, **options)
    return np.array([found.epsilon_lower for found in estimates])


@pytest.mark.parametrize("rule", ["combined", "calibrated", "rank_sum"])
@pytest.mark.parametrize(("mu", "num_runs"), [(1.0, 250), (2.0, 1000)])
def test_the_expected_bound(mu, num_runs, rule):
    num_audits = 1000
    expected = expected_bound(mechanism=mu, num_runs=num_runs, delta=DELTA, threshold_rule=rule)
    half = num_runs // 2
    bounds = simulated_bounds(
        gaussian(mu), per_world=half, num_audits=num_audits, seed=[1, half], threshold_rule=rule
    )
    error = np.hypot(expected.standard_error, bounds.std() / np.sqrt(num_audits))
    assert abs(expected.mean - bounds.mean()) <= 4 * error
    # A quantile of level p is one if about a share p of other audits is below.
    for level, quantile in ((0.05, expected.low), (0.5, expected.median), (0.95, expected.high)):
        share = (bounds <= quantile).mean()
        assert abs(share - level) <= 4 * np.sqrt(level * (1 - level) * (1 / num_audits + 1 / 4000))


@pytest.mark.parametrize(("mu", "part"), [(1.0, 0.5), (2.0, 0.9)])
def test_so_many_runs_as_needed_have_the_power(mu, part):
    """The search interpolates: its power is right to 3 %, and the simulation's error is 1 %."""
    exceed = part * gdp_epsilon(mu=mu, delta=DELTA)
    num_runs = runs_needed(mechanism=mu, exceed=exceed, delta=DELTA, power=0.8)
    half = num_runs // 2
    bounds = simulated_bounds(gaussian(mu), per_world=half, num_audits=1500, seed=[2, half])
    assert abs((bounds > exceed).mean() - 0.8) <= 0.06


def test_the_expected_bound_on_a_subsampled_mechanism():
    mechanism = Mechanism("substitute", sample_rate=0.01, noise_multiplier=0.7, num_steps=500)
    options = {"conversion": "subsampled_gaussian", "mechanism": mechanism}
    expected = expected_bound(num_runs=160, delta=DELTA, **options)
    bounds = simulated_bounds(
        transcripts(mechanism), per_world=80, num_audits=300, seed=3, **options
    )
    error = np.hypot(expected.standard_error, np.std(bounds) / np.sqrt(len(bounds)))
    assert abs(expected.mean - np.mean(bounds)) <= 4 * error
