"""An epsilon at every setting: the accountants that always answer, and when they are asked."""

import numpy as np
import pytest
from accounts import tails_of_step, upper_of
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from sampling import exhaustive
from scipy.stats import norm

from dpcanary.accounting.by_adjacency import account_by_adjacency
from dpcanary.accounting.epsilon import account_epsilon, all_methods, checked_question
from dpcanary.accounting.loose import renyi_divergences
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.accounting.noise_calibration import calibrate_with_fallback
from dpcanary.accounting.phases import Phase, account_phases
from dpcanary.accounting.pld import composed_losses
from dpcanary.accounting.total_variation import total_variation_bound
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_epsilon

# Settings of the grid that all runs try, and the accountant that answers.
METHODS = {
    0: "pld", 1: "loose", 2: "loose", 3: "pld", 5: "closed_form", 6: "pld", 7: "pld",
    85: "closed_form",  # delta near round-off
    127: "loose",  # steep divergences
    387: "prv",  # coarse losses
    391: "pld",  # many rounded losses
}  # fmt: skip


def grid() -> list[tuple[Mechanism, float]]:
    """Mechanisms and deltas over all magnitudes; every fifth one without sampling."""
    rng = np.random.default_rng(7)
    settings = []
    for index in range(500):
        rate = 1.0 if index % 5 == 0 else float(10 ** rng.uniform(-7, 0))
        mechanism = Mechanism(
            "substitute" if index % 2 else "add_remove",
            sample_rate=rate,
            num_steps=int(10 ** rng.uniform(0, 6)),
            noise_multiplier=float(10 ** rng.uniform(-1, 2)),
        )
        settings.append((mechanism, float(10 ** rng.uniform(-15, -1))))
    return settings


GRID = grid()


def lower_bound_of_one_step(mechanism: Mechanism, delta: float) -> float:
    """An epsilon that one step exceeds: that at which outputs above a threshold have more delta."""
    sigma = mechanism.noise_multiplier
    outputs = np.linspace(-2, 2, 41) + sigma * np.linspace(-8, 40, 41)
    step = {"sample_rate": mechanism.sample_rate, "noise_multiplier": sigma}
    (world0, world1), _ = tails_of_step(mechanism.adjacency, outputs, **step)
    known = (world0 > delta) & (world1 > 0)
    return np.log((world0[known] - delta) / world1[known]).max(initial=0.0)


@pytest.mark.parametrize(
    "index", [index if index in METHODS else exhaustive(index) for index in range(len(GRID))]
)
def test_every_setting_of_the_grid_is_accounted(index):
    """Under both adjacencies, and within what is known independently."""
    mechanism, delta = GRID[index]
    epsilons = account_by_adjacency(mechanism, delta=delta)
    assert METHODS.get(index, epsilons.method) == epsilons.method
    q, sigma, steps = mechanism.sample_rate, mechanism.noise_multiplier, mechanism.num_steps
    for adjacency in (Adjacency.ADD_REMOVE, Adjacency.SUBSTITUTE):
        epsilon = getattr(epsilons, adjacency)
        assert 0 <= epsilon < np.inf
        # Full batches are the Gaussian mechanism; sampling can only help.
        unsampled = gdp_epsilon(mu=adjacency.sensitivity * steps**0.5 / sigma, delta=delta)
        if q == 1:
            assert epsilon == pytest.approx(unsampled, rel=2e-4, abs=1e-9)
        elif epsilons.method != "loose":
            assert epsilon <= unsampled * (1 + 1e-3) + 1e-6
        # One step alone: the largest delta of the Gaussian, of which sampling takes the share q.
        assert epsilon >= lower_bound_of_one_step(mechanism.under(adjacency), delta) * (1 - 1e-9)
    if q < 1:
        # The Rényi accountant of dp-accounting, for add/remove; its orders differ from ours.
        renyi = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
        renyi.compose(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps)
        assert epsilons.add_remove <= renyi.get_epsilon(delta) * 1.005 + 1e-9


@pytest.mark.parametrize(("q", "sigma"), [(0.03, 0.7), (0.4, 2.0), (1.0, 3.0)])
@pytest.mark.parametrize(("adjacency", "centre"), [("zero_out", 0.0), ("substitute", -1.0)])
def test_divergences_are_those_of_quadrature(adjacency, centre, q, sigma):
    """By a fine sum of the integrand, whose tails are negligible at both ends."""
    orders = np.array([1.01, 1.7, 4.0, 23.0])
    expected = []
    for order in orders:
        outputs = np.linspace(-2 * order - 9 * sigma, 2 * order + 9 * sigma, 200_001)
        with np.errstate(divide="ignore"):
            absent, *logs = (
                np.log(share) + norm.logpdf(outputs, mean, sigma)
                for share, mean in ((1 - q, 0.0), (q, 1.0), (q, centre))
            )
        first, second = (np.logaddexp(absent, present) for present in logs)
        integrals = [
            np.trapezoid(np.exp(order * own + (1 - order) * other), outputs)
            for own, other in ((first, second), (second, first))
        ]
        expected.append(np.log(max(integrals)) / (order - 1))
    mechanism = Mechanism(adjacency, sample_rate=q, num_steps=3, noise_multiplier=sigma)
    np.testing.assert_allclose(renyi_divergences(mechanism, orders), expected, rtol=1e-6)


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta", "most"),
    [(0.1, 2.0, 200, 1e-5, 1.11), (0.5, 5.0, 50, 1e-8, 1.1), (1e-3, 0.8, 3000, 1e-6, 1.02)],
)
def test_the_loose_bound_is_above_the_exact_one_and_near(adjacency, q, sigma, steps, delta, most):
    mechanism = Mechanism(adjacency, sample_rate=q, num_steps=steps, noise_multiplier=sigma)
    exact = account_epsilon(mechanism, delta=delta)
    loose = account_epsilon(mechanism, delta=delta, method="loose")
    assert exact.lower <= exact.upper <= loose.upper * (1 + 1e-9)
    assert loose.upper <= most * exact.upper
    assert loose.lower == 0.0


def test_an_epsilon_is_zero_where_delta_covers_the_total_variation():
    mechanism = Mechanism("substitute", sample_rate=1e-4, num_steps=1, noise_multiplier=2.0)
    total_variation = 1e-4 * (2 * norm.cdf(1 / 2.0) - 1)
    phases = [Phase(17.2, 5.5e-6, 500_000), Phase(17.0, 5.4e-6, 70_000)]
    for epsilons, is_zero in (
        (account_by_adjacency(mechanism, delta=1.001 * total_variation), True),
        (account_by_adjacency(mechanism, delta=0.999 * total_variation), False),
        (account_phases(phases, delta=8.7e-4), True),
        (account_phases(phases, delta=8.7e-5), False),
    ):
        assert (epsilons.substitute == 0) is is_zero
        assert epsilons.add_remove == 0 or not is_zero
    # Of many steps this is only a bound, but it is below the grid's rounding.
    many = Mechanism("substitute", sample_rate=1.9e-7, num_steps=64_563, noise_multiplier=75.9)
    assert account_by_adjacency(many, delta=9e-4).substitute == 0


@pytest.mark.parametrize(("adjacency", "q", "sigma", "steps", "most"), [
    ("add_remove", 1e-3, 0.8, 3_000, 1.28),  # by the chi-squared divergence
    ("substitute", 1e-3, 0.8, 3_000, 1.28),
    ("add_remove", 1e-4, 0.15, 10, 1.01),  # by the sum over steps
    ("substitute", 1e-4, 0.15, 10, 1.01),
    ("add_remove", 1.0, 30.0, 40, 1.01),  # by the Gaussian mechanism
    ("substitute", 0.9, 30.0, 40, 1.2),
])  # fmt: skip
def test_the_total_variation_is_bounded_from_above(adjacency, q, sigma, steps, most):
    """Which is the delta at epsilon 0."""
    mechanism = Mechanism(adjacency, sample_rate=q, num_steps=steps, noise_multiplier=sigma)
    question = checked_question(mechanism, delta=0.5)  # the delta is not used
    [lower], [upper] = (
        composed_losses(question, [steps], pessimistic=side) for side in (False, True)
    )
    bound = total_variation_bound([mechanism])
    assert lower.delta(0.0) <= bound <= most * upper.delta(0.0)
    # The phases of one mechanism are this mechanism; little noise bounds nothing.
    parts = [mechanism.after(steps - 7), mechanism.after(7)]
    assert total_variation_bound(parts) == pytest.approx(bound, rel=1e-9)
    assert total_variation_bound([mechanism.with_noise(1e-3).after(10**6)]) >= 1 - 1e-9


def test_rare_records_in_many_steps_are_accounted_within_a_third_of_a_fine_grid():
    """One phase of a million records in batches of one; the fine grid is dp-accounting's own."""
    mechanism = Mechanism("add_remove", sample_rate=1e-5, num_steps=100_000, noise_multiplier=1.0)
    epsilon = account_by_adjacency(mechanism, delta=1e-7).add_remove
    assert 0.0164 <= epsilon <= 0.0164 * 4 / 3


def test_phases_whose_delta_is_near_round_off_are_accounted_by_divergences():
    phases = [Phase(2.0, 0.05, 3_000), Phase(3.0, 0.1, 2_000)]
    loose = account_phases(phases, delta=1e-14)
    assert loose.method == "loose"
    # Between two trainings with the rarer batches and the larger noise, and the other way round.
    for adjacency in ("add_remove", "substitute"):
        known = {"adjacency": adjacency, "num_steps": 5_000, "delta": 1e-14, "method": "loose"}
        least = upper_of(sample_rate=0.05, noise_multiplier=3.0, **known)
        most = upper_of(sample_rate=0.1, noise_multiplier=2.0, **known)
        assert least < getattr(loose, adjacency) < most


def test_full_batches_are_calibrated_by_the_closed_form_and_slow_accountants_are_asked_seldom():
    mechanism = Mechanism("substitute", sample_rate=1.0, num_steps=300)
    noise, method = calibrate_with_fallback(mechanism, epsilon=3.0, delta=1e-15, instead="stop")
    assert method == "closed_form"
    assert gdp_epsilon(mu=2 * 300**0.5 / noise, delta=1e-15) == pytest.approx(3.0, rel=1e-4)
    few = Mechanism("substitute", sample_rate=0.1, num_steps=20_000, noise_multiplier=1.0)
    assert [method.value for method in all_methods(few)] == ["pld", "prv", "loose"]
    assert "prv" not in all_methods(few.after(20_001))
