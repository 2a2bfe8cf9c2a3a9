"""Epsilons against the published table and best thresholds, and Gaussian conversions."""

from inspect import signature
from itertools import product
from math import exp, inf, log, nan
from time import process_time

import numpy as np
import pytest
from accounts import bounds_of, noise_for, setting, upper_of
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpcanary.core.gdp import gdp_delta, gdp_epsilon, gdp_mu
from dpcanary.errors import InputError

# By adjacency: the centres of both Gaussian mixtures, in each direction.
CENTRES = {"substitute": [(1.0, -1.0)], "add_remove": [(1.0, 0.0), (0.0, 1.0)]}
# (sample_rate, noise_multiplier): epsilon under add/remove, under substitute and by group privacy,
# at delta 1e-5 after 500 steps, printed to three digits.
ANCHORS = {
    (1.0, 168.076): (0.465, 0.992, 0.994),
    (1.0, 22.370): (4.375, 9.992, 11.042),
    (0.25, 42.080): (0.465, 0.990, 0.994),
    (0.25, 12.115): (1.835, 3.987, 4.136),
    (0.25, 5.574): (4.475, 9.997, 11.399),
    (0.0625, 10.495): (0.470, 0.993, 1.006),
    (0.0625, 3.0174): (1.938, 3.998, 4.405),
    (0.0625, 1.6773): (4.140, 7.997, 10.579),
}


def test_upper_epsilons_match_the_table() -> None:
    kinds = [("add_remove", "pld"), ("substitute", "pld"), ("substitute", "group_privacy")]
    for (q, sigma), epsilons in ANCHORS.items():
        given = setting(sample_rate=q, noise_multiplier=sigma)
        uppers = [upper_of(**given | {"adjacency": name}, method=by) for name, by in kinds]
        assert uppers == pytest.approx(epsilons, abs=6e-4), (q, sigma)


def divergence(
    adjacency: str, epsilon: float, *, sample_rate: float, noise_multiplier: float
) -> float:
    """Hockey-stick divergence of one step in the worse direction, without a loss distribution.

    The ratio of the two densities rises or falls throughout, so that a threshold is best.
    """
    q, sigma = sample_rate, noise_multiplier
    cuts = np.linspace(-12 * sigma - 1, 12 * sigma + 1, 200_001)
    excesses = []
    for centres, tail in product(CENTRES[adjacency], (norm.sf, norm.cdf)):
        masses = [(1 - q) * tail(cuts / sigma) + q * tail((cuts - mu) / sigma) for mu in centres]
        excesses.append((masses[0] - exp(epsilon) * masses[1]).max())
    return max(excesses)


@pytest.mark.parametrize(("q", "sigma"), [(0.25, 2.0), (0.05, 0.8), (0.7, 5.0)])
def test_one_sampled_step_has_the_divergence_of_its_best_threshold(q: float, sigma: float) -> None:
    step = {"sample_rate": q, "noise_multiplier": sigma}
    for method, adjacency in product(("pld", "prv"), CENTRES):
        given = setting(adjacency=adjacency, num_steps=1, delta=1e-4, method=method, **step)
        epsilons = vars(bounds_of(**given)).values()
        lower, estimate, upper = (divergence(adjacency, epsilon, **step) for epsilon in epsilons)
        assert lower >= 1e-4 * (1 - 1e-6)
        assert estimate == pytest.approx(1e-4, rel=2e-3)
        assert upper <= 1e-4 * (1 + 1e-6)


@pytest.mark.parametrize("adjacency", CENTRES)
def test_noise_at_rare_sampling_is_right_and_soon_found(adjacency: str) -> None:
    """Most losses of a step are tiny, but some are large: one grid for both would be huge."""
    q, epsilon, delta = 0.001, 10.0, 1e-5
    start = process_time()
    sigma = noise_for(adjacency=adjacency, epsilon=epsilon, delta=delta, sample_rate=q, num_steps=1)
    assert process_time() - start < 10
    exact, less = (
        divergence(adjacency, epsilon, sample_rate=q, noise_multiplier=noise)
        for noise in (sigma, sigma * (1 - 1e-4))
    )
    assert exact <= delta < less


@given(log_mu=st.floats(-7, 4), log_delta=st.floats(-35, -4.6))
def test_gaussian_conversions_invert_each_other(log_mu: float, log_delta: float) -> None:
    mu, delta = exp(log_mu), exp(log_delta)
    epsilon = gdp_epsilon(mu=mu, delta=delta)
    if gdp_delta(mu=mu, epsilon=0.0) <= delta:
        assert epsilon == 0.0
        return
    assert epsilon > 0
    assert gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(delta, rel=1e-8)
    assert gdp_mu(epsilon=epsilon, delta=delta) == pytest.approx(mu, rel=1e-8)


def test_gaussian_delta_matches_direct_integration_and_conversions_have_their_ends() -> None:
    for mu, epsilon in [(0.5, 0.3), (2.0, 3.0), (4.0, 12.0), (1.0, -0.7)]:
        x = np.linspace(epsilon / mu - mu / 2, epsilon / mu + 12, 400_001)
        excess = norm.pdf(x) * -np.expm1(epsilon - mu * x - mu**2 / 2)
        direct = np.trapezoid(excess, x)
        assert gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(direct, rel=1e-8)
    assert gdp_epsilon(mu=0.0, delta=1e-5) == 0.0
    assert gdp_epsilon(mu=inf, delta=1e-5) == gdp_mu(epsilon=inf, delta=1e-5) == inf
    assert gdp_delta(mu=0.0, epsilon=1.0) == 0.0
    assert gdp_delta(mu=0.0, epsilon=log(0.25)) == pytest.approx(0.75)
    assert gdp_delta(mu=inf, epsilon=1.0) == 1.0
    assert gdp_delta(mu=gdp_mu(epsilon=0.0, delta=1e-5), epsilon=0.0) == pytest.approx(1e-5)


BAD = {"mu": (-1.0, nan), "delta": (0.0, 1.0, nan), "epsilon": (nan,)}


@pytest.mark.parametrize("function", [gdp_delta, gdp_epsilon, gdp_mu])
def test_gaussian_conversions_refuse_bad_arguments(function) -> None:
    good = dict.fromkeys(signature(function).parameters, 0.5)
    further = {gdp_delta: [("epsilon", inf)], gdp_mu: [("epsilon", -1.0)]}
    cases = [(name, value) for name in good for value in BAD[name]]
    for name, value in cases + further.get(function, []):
        with pytest.raises(InputError, match=name):
            function(**good | {name: value})
