"""Epsilons against the published table, closed forms and direct integration."""

from itertools import pairwise
from math import exp, log, pi, sqrt
from time import process_time

import numpy as np
import pytest
from accounts import bounds_of, noise_for, uppers_of
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.integrate import quad

from dpcanary.errors import InputError
from dpcanary.gdp import gdp_delta, gdp_epsilon, gdp_mu

# By adjacency: the centres of both Gaussian mixtures, in each direction.
CENTRES = {"substitute": [(1.0, -1.0)], "add_remove": [(1.0, 0.0), (0.0, 1.0)]}
RELATIONS = {
    "substitute": NeighboringRelation.REPLACE_ONE,
    "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
}
# (sample_rate, noise_multiplier): epsilon under add/remove, under substitute and by group privacy,
# at delta 1e-5 after 500 steps, printed to three digits.
ANCHORS = {
    (1.0, 168.076): (0.465, 0.992, 0.994),
    (1.0, 89.128): (0.930, 2.001, 2.018),
    (1.0, 48.403): (1.825, 3.995, 4.108),
    (1.0, 34.130): (2.700, 6.004, 6.323),
    (1.0, 26.892): (3.540, 7.982, 8.613),
    (1.0, 22.370): (4.375, 9.992, 11.042),
    (0.25, 42.080): (0.465, 0.990, 0.994),
    (0.25, 22.348): (0.930, 1.994, 2.019),
    (0.25, 12.115): (1.835, 3.987, 4.136),
    (0.25, 8.543): (2.725, 5.987, 6.400),
    (0.25, 6.694): (3.610, 8.005, 8.838),
    (0.25, 5.574): (4.475, 9.997, 11.399),
    (0.0625, 10.495): (0.470, 0.993, 1.006),
    (0.0625, 5.578): (0.950, 1.996, 2.066),
    (0.0625, 3.0174): (1.938, 3.998, 4.405),
    (0.0625, 2.132): (2.990, 5.992, 7.176),
    (0.0625, 1.6773): (4.140, 7.997, 10.579),
}


@pytest.mark.parametrize(("q", "sigma"), ANCHORS)
def test_upper_epsilons_match_the_table(q: float, sigma: float) -> None:
    found = [
        uppers_of(
            adjacency=adjacency,
            sample_rate=q,
            noise_multiplier=sigma,
            steps=[500],
            delta=1e-5,
            method=method,
        )[0]
        for adjacency, method in [
            ("add_remove", "pld"),
            ("substitute", "pld"),
            ("substitute", "group_privacy"),
        ]
    ]
    assert found == pytest.approx(ANCHORS[q, sigma], abs=6e-4)


def test_hidden_state_setting() -> None:
    assert gdp_epsilon(mu=sqrt(250) / 4, delta=1e-5) == pytest.approx(23.995, abs=5e-4)
    bounds = bounds_of(
        adjacency="add_remove", sample_rate=1.0, noise_multiplier=4.0, num_steps=250, delta=1e-5
    )
    assert bounds.estimate == pytest.approx(23.995, abs=1e-3)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize(
    ("sigma", "steps", "delta"),
    [
        (22.37, 500, 1e-5),
        (22.37, 500, 1e-12),
        (4.0, 500, 1e-5),  # substitute epsilon of about 110
        (4.0, 500, 1e-12),
        (1e4, 500, 1e-5),
        (1e4, 500, 1e-8),
        (1e4, 1, 1e-12),
    ],
)
@pytest.mark.parametrize("method", ["pld", "prv"])
def test_full_batches_are_a_gaussian_mechanism(
    adjacency: str, sigma: float, steps: int, delta: float, method: str
) -> None:
    setting = {
        "adjacency": adjacency,
        "sample_rate": 1.0,
        "noise_multiplier": sigma,
        "num_steps": steps,
        "delta": delta,
    }
    exact = bounds_of(**setting, method="closed_form").estimate
    bounds = bounds_of(**setting, method=method)
    assert bounds.lower <= exact <= bounds.upper
    # prv-accountant's errors are absolute: they do not shrink with a small epsilon.
    assert bounds.estimate == pytest.approx(exact, rel=5e-4, abs={"pld": 1e-7, "prv": 1e-4}[method])


def _tilted(x: float, q: float, sigma: float, centre: float) -> float:
    normal = 1 / (sigma * sqrt(2 * pi))
    apart = exp(-((x - centre) ** 2) / (2 * sigma**2))
    return normal * ((1 - q) * exp(-(x**2) / (2 * sigma**2)) + q * apart)


def _divergence(centres: tuple[float, float], q: float, sigma: float, epsilon: float) -> float:
    """Hockey-stick divergence of one step by direct integration, without a loss distribution."""

    def excess(x: float) -> float:
        return _tilted(x, q, sigma, centres[0]) - exp(epsilon) * _tilted(x, q, sigma, centres[1])

    # The excess changes sign at one place; integrate only where it is positive.
    x = np.linspace(-12 * sigma - 1, 12 * sigma + 1, 20_001)
    signs = np.array([excess(point) > 0 for point in x])
    edges = [x[0], *x[1:][signs[1:] != signs[:-1]], x[-1]]
    parts = [
        quad(lambda point: max(0.0, excess(point)), low, high, epsabs=1e-14, limit=500)[0]
        for low, high in pairwise(edges)
    ]
    return sum(parts)


@pytest.mark.parametrize(("q", "sigma"), [(0.25, 2.0), (0.05, 0.8), (0.7, 5.0)])
@pytest.mark.parametrize("method", ["pld", "prv"])
def test_one_sampled_step_matches_direct_integration(q: float, sigma: float, method: str) -> None:
    for adjacency, directions in CENTRES.items():
        bounds = bounds_of(
            adjacency=adjacency,
            sample_rate=q,
            noise_multiplier=sigma,
            num_steps=1,
            delta=1e-4,
            method=method,
        )
        deltas = [
            [_divergence(pair, q, sigma, epsilon) for pair in directions]
            for epsilon in (bounds.lower, bounds.estimate, bounds.upper)
        ]
        largest = [max(values) for values in deltas]
        assert largest[0] >= 1e-4 * (1 - 1e-6)
        assert largest[1] == pytest.approx(1e-4, rel=2e-3)
        assert largest[2] <= 1e-4 * (1 + 1e-6)


@pytest.mark.parametrize("adjacency", CENTRES)
def test_noise_at_rare_sampling_is_right_and_soon_found(adjacency: str) -> None:
    """Most losses of a step are tiny, but some are large: one grid for both would be huge."""
    q, epsilon, delta = 0.001, 10.0, 1e-5
    start = process_time()
    sigma = noise_for(adjacency=adjacency, epsilon=epsilon, delta=delta, sample_rate=q, num_steps=1)
    assert process_time() - start < 10

    def accounted(noise_multiplier: float) -> float:
        accountant = PLDAccountant(RELATIONS[adjacency], value_discretization_interval=1e-3)
        step = PoissonSampledDpEvent(q, GaussianDpEvent(noise_multiplier))
        return accountant.compose(step).get_epsilon(delta)

    def integrated(noise_multiplier: float) -> float:
        pairs = CENTRES[adjacency]
        return max(_divergence(pair, q, noise_multiplier, epsilon) for pair in pairs)

    # dp-accounting's epsilon is too large by at most 2e-7 on this grid.
    assert accounted(sigma) <= epsilon
    assert accounted(sigma * (1 - 1e-4)) > epsilon + 1e-6
    assert integrated(sigma) <= delta
    assert integrated(sigma * (1 - 1e-4)) > delta


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 4.0, 20.0, 50.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10, 1e-15])
def test_gaussian_conversions_invert_each_other(mu: float, delta: float) -> None:
    epsilon = gdp_epsilon(mu=mu, delta=delta)
    if gdp_delta(mu=mu, epsilon=0.0) <= delta:
        assert epsilon == 0.0
        return
    assert epsilon > 0
    assert gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(delta, rel=1e-8)
    assert gdp_mu(epsilon=epsilon, delta=delta) == pytest.approx(mu, rel=1e-8)


def test_gaussian_delta_matches_direct_integration() -> None:
    for mu, epsilon in [(0.5, 0.3), (2.0, 3.0), (4.0, 12.0)]:
        direct = quad(
            lambda x, mu=mu, epsilon=epsilon: (
                exp(-(x**2) / 2) * -np.expm1(epsilon - mu * x - mu**2 / 2) / sqrt(2 * pi)
            ),
            epsilon / mu - mu / 2,
            epsilon / mu + 12,
            epsabs=0,
        )[0]
        assert gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(direct, rel=1e-8)


def test_gaussian_conversions_at_their_ends() -> None:
    assert gdp_epsilon(mu=0.0, delta=1e-5) == 0.0
    assert gdp_epsilon(mu=float("inf"), delta=1e-5) == float("inf")
    assert gdp_delta(mu=0.0, epsilon=1.0) == 0.0
    assert gdp_delta(mu=0.0, epsilon=log(0.25)) == pytest.approx(0.75)
    assert gdp_delta(mu=float("inf"), epsilon=1.0) == 1.0
    assert gdp_mu(epsilon=float("inf"), delta=1e-5) == float("inf")
    assert gdp_delta(mu=gdp_mu(epsilon=0.0, delta=1e-5), epsilon=0.0) == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (gdp_delta, {"mu": -1.0, "epsilon": 1.0}, "mu"),
        (gdp_delta, {"mu": float("nan"), "epsilon": 1.0}, "mu"),
        (gdp_delta, {"mu": 1.0, "epsilon": float("inf")}, "epsilon"),
        (gdp_epsilon, {"mu": -1.0, "delta": 1e-5}, "mu"),
        (gdp_epsilon, {"mu": 1.0, "delta": 0.0}, "delta"),
        (gdp_epsilon, {"mu": 1.0, "delta": float("nan")}, "delta"),
        (gdp_mu, {"epsilon": -1.0, "delta": 1e-5}, "epsilon"),
        (gdp_mu, {"epsilon": 1.0, "delta": 1.0}, "delta"),
    ],
)
def test_gaussian_conversions_refuse_bad_arguments(function, arguments, name) -> None:
    with pytest.raises(InputError, match=name):
        function(**arguments)
