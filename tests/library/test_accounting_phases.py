"""Trainings whose noise or sample rate changes, against Gaussian closed forms and dp_accounting."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from dpcanary import InputError, Mechanism, account_by_adjacency
from dpcanary.accounting import Phase, account_phases, gdp_epsilon

DELTA = 1e-6


@pytest.mark.parametrize(
    ("noises", "steps", "most"),
    [
        pytest.param([12.0, 20.0, 9.0], [30, 50, 1], 1.001, id="few"),
        # Nearly all noises are just below one that they could be rounded up to.
        pytest.param(
            [6.0, *6.0 * 2 ** (np.arange(0.9, 100) / 100), 12.0], [5] * 102, 1.02, id="hundreds"
        ),
    ],
)
def test_full_batches_are_one_gaussian_mechanism_on_the_safe_side(noises, steps, most) -> None:
    """Noise of more than 100 phases is rounded, never up."""
    phases = [Phase(float(noise), 1.0, count) for noise, count in zip(noises, steps, strict=True)]
    mu = math.sqrt(sum(phase.num_steps / phase.noise_multiplier**2 for phase in phases))
    epsilons = account_phases(phases, delta=DELTA)
    for epsilon, sensitivity in ((epsilons.add_remove, 1), (epsilons.substitute, 2)):
        exact = gdp_epsilon(mu=sensitivity * mu, delta=DELTA)
        assert exact - 1e-6 <= epsilon <= most * exact
    assert math.isnan(epsilons.group_privacy)


@pytest.mark.parametrize(("noise", "rate"), [(0.9, 0.02), (2.0, 0.3)])
def test_phases_of_the_same_kind_are_one(noise, rate) -> None:
    mechanism = Mechanism("substitute", sample_rate=rate, num_steps=90, noise_multiplier=noise)
    whole = account_by_adjacency(mechanism, delta=DELTA)
    assert account_phases([Phase(noise, rate, 40), Phase(noise, rate, 50)], delta=DELTA) == whole
    # Two phases that hardly differ are composed.
    parts = account_phases([Phase(noise, rate, 40), Phase(noise + 1e-9, rate, 50)], delta=DELTA)
    assert parts.substitute == pytest.approx(whole.substitute, rel=2e-3)
    assert parts.add_remove == pytest.approx(whole.add_remove, rel=2e-3)


def test_phases_lie_between_their_extremes_and_below_renyi() -> None:
    phases = [Phase(1.1, 0.05, 100), Phase(1.6, 0.02, 200)]
    epsilon = account_phases(phases, delta=DELTA).add_remove
    renyi = RdpAccountant()
    for phase in phases:
        event = PoissonSampledDpEvent(phase.sample_rate, GaussianDpEvent(phase.noise_multiplier))
        renyi.compose(event, phase.num_steps)
        alone = Mechanism("add_remove", **vars(phase))
        assert account_by_adjacency(alone, delta=DELTA).add_remove < epsilon
    assert epsilon < renyi.get_epsilon(DELTA)


def test_what_is_no_phase_is_refused() -> None:
    for phases, delta, message in (
        ([], DELTA, "empty"),
        ([Phase(1.0, 1.5, 3)], DELTA, "sample_rate"),
        ([Phase(1.0, 0.5, 3)], 2.0, "delta"),
    ):
        with pytest.raises(InputError, match=message):
            account_phases(phases, delta=delta)
