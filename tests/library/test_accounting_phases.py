"""Trainings whose noise or sample rate changes, against Gaussian closed forms and dp_accounting."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from dpcanary import InputError, Mechanism, account_by_adjacency
from dpcanary.accounting import Phase, account_phases, gdp_epsilon

DELTA = 1e-6


def test_full_batches_are_one_gaussian_mechanism():
    phases = [Phase(12.0, 1.0, 30), Phase(20.0, 1.0, 50), Phase(9.0, 1.0, 1)]
    mu = math.sqrt(30 / 12**2 + 50 / 20**2 + 1 / 9**2)
    found = account_phases(phases, delta=DELTA)
    assert found.add_remove == pytest.approx(gdp_epsilon(mu=mu, delta=DELTA), rel=1e-3)
    assert found.substitute == pytest.approx(gdp_epsilon(mu=2 * mu, delta=DELTA), rel=1e-3)
    assert found.add_remove >= gdp_epsilon(mu=mu, delta=DELTA) - 1e-6
    assert math.isnan(found.group_privacy)


@pytest.mark.parametrize(("noise", "rate"), [(0.9, 0.02), (2.0, 0.3)])
def test_phases_of_the_same_kind_are_one(noise, rate):
    mechanism = Mechanism("substitute", sample_rate=rate, num_steps=90, noise_multiplier=noise)
    whole = account_by_adjacency(mechanism, delta=DELTA)
    assert account_phases([Phase(noise, rate, 40), Phase(noise, rate, 50)], delta=DELTA) == whole
    # The same by composition of two phases that hardly differ.
    parts = account_phases([Phase(noise, rate, 40), Phase(noise + 1e-9, rate, 50)], delta=DELTA)
    assert parts.substitute == pytest.approx(whole.substitute, rel=2e-3)
    assert parts.add_remove == pytest.approx(whole.add_remove, rel=2e-3)


def test_phases_lie_between_their_extremes_and_below_renyi():
    phases = [Phase(1.1, 0.05, 100), Phase(1.6, 0.02, 200)]
    found = account_phases(phases, delta=DELTA)
    renyi = RdpAccountant()
    for phase in phases:
        event = PoissonSampledDpEvent(phase.sample_rate, GaussianDpEvent(phase.noise_multiplier))
        renyi.compose(event, phase.num_steps)
    assert found.add_remove < renyi.get_epsilon(DELTA)
    for steps, noise, rate in ((100, 1.1, 0.05), (200, 1.6, 0.02)):
        alone = Mechanism("add_remove", sample_rate=rate, num_steps=steps, noise_multiplier=noise)
        assert account_by_adjacency(alone, delta=DELTA).add_remove < found.add_remove


def test_hundreds_of_phases_err_on_the_safe_side_and_little():
    noises = np.geomspace(4.0, 8.0, 300)
    mu = math.sqrt(float((noises**-2.0).sum()))
    found = account_phases([Phase(float(noise), 1.0, 1) for noise in noises], delta=DELTA)
    truth = gdp_epsilon(mu=mu, delta=DELTA)
    assert truth <= found.add_remove <= 1.02 * truth


def test_noise_of_hundreds_of_phases_is_never_rounded_up():
    """Nearly all noises are just below one that they could be rounded up to."""
    noises = [6.0, *6.0 * 2 ** (np.arange(0.9, 100) / 100), 12.0]
    mu = math.sqrt(sum(5 * noise**-2.0 for noise in noises))
    found = account_phases([Phase(float(noise), 1.0, 5) for noise in noises], delta=DELTA)
    assert found.add_remove >= gdp_epsilon(mu=mu, delta=DELTA)
    assert found.substitute >= gdp_epsilon(mu=2 * mu, delta=DELTA)


def test_what_is_no_phase_is_refused():
    with pytest.raises(InputError, match="empty"):
        account_phases([], delta=DELTA)
    with pytest.raises(InputError, match="sample_rate"):
        account_phases([Phase(1.0, 1.5, 3)], delta=DELTA)
    with pytest.raises(InputError, match="delta"):
        account_phases([Phase(1.0, 0.5, 3)], delta=2.0)
