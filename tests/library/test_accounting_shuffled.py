"""What shuffled batches guarantee: against a naive simulation of loops and against closed forms."""

from itertools import product
from math import exp, nan, sqrt

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import norm

from dpcanary.accounting.calibration import calibrate_shuffled
from dpcanary.accounting.epsilon import account_epsilon, account_epsilon_curve
from dpcanary.accounting.losses import simulate_epsilon
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism, batches_of_pass
from dpcanary.accounting.shuffling import account_shuffled, guaranteed_epsilon
from dpcanary.adjacency import Adjacency
from dpcanary.errors import InputError
from dpcanary.gdp import gdp_delta, gdp_epsilon

DISTANCES = {"zero_out": 1.0, "substitute": 2.0, "add_remove": sqrt(5)}
every_adjacency = pytest.mark.parametrize("adjacency", [*Adjacency])


def shuffled(adjacency="substitute", *, batches=50, steps=250, sigma=1.1) -> ShuffledMechanism:
    return ShuffledMechanism(
        adjacency, batches_per_pass=batches, num_steps=steps, noise_multiplier=sigma
    )


@given(
    adjacency=st.sampled_from([*Adjacency]),
    batches=st.integers(1, 60),
    steps=st.integers(1, 400),
    sigma=st.floats(0.4, 30.0),
    log_delta=st.floats(-16, -6),
)
@example("substitute", 50, 250, 1.1, -11)  # five whole passes
@example("add_remove", 50, 251, 0.4, -16)  # a sixth has begun
def test_a_guarantee_is_that_of_one_gaussian_for_each_pass(
    adjacency, batches, steps, sigma, log_delta
):
    mechanism, delta = (
        shuffled(adjacency, batches=batches, steps=steps, sigma=sigma),
        exp(log_delta),
    )
    passes = len(range(0, steps, batches))
    assert mechanism.num_passes == passes
    mu = DISTANCES[adjacency] * sqrt(passes) / sigma
    epsilon = guaranteed_epsilon(mechanism, delta=delta)
    if 0 < epsilon < 600:  # the definition, from scipy's distribution
        upper, lower = norm.cdf(mu / 2 - epsilon / mu), norm.logcdf(-mu / 2 - epsilon / mu)
        assert upper - exp(epsilon + lower) == pytest.approx(delta, rel=1e-6)
    assert epsilon == pytest.approx(gdp_epsilon(mu=mu, delta=delta), rel=1e-12)


@every_adjacency
def test_what_the_sums_of_two_neighbours_differ_by_is_the_distance(adjacency):
    """Datasets of +-C; the worst over positions and others is found by trying all of them."""
    worst = 0.0
    for size, count in ((1, 3), (2, 6), (3, 7)):
        for others in (-1.0, 0.0, 1.0):
            for target in (-1.0, 1.0):
                for place in range(count):
                    records = [others] * count
                    records[place] = target
                    worst = max(worst, *distances(adjacency, records, place, size))
    assert worst == pytest.approx(DISTANCES[adjacency], rel=1e-12)


def distances(adjacency: str, records: list[float], place: int, size: int) -> list[float]:
    """Between the sums of the batches of one order of the records and that of a neighbour."""
    neighbours = []
    if adjacency == "zero_out":
        neighbours = [[*records[:place], 0.0, *records[place + 1 :]]]
    if adjacency == "substitute":
        neighbours = [[*records[:place], -records[place], *records[place + 1 :]]]
    if adjacency == "add_remove":  # the last record takes the place of the one that is missing
        *kept, last = records
        if len(kept) % size:  # else there would be a batch less
            neighbours = [kept if place == len(kept) else [*kept[:place], last, *kept[place + 1 :]]]
    return [
        float(np.linalg.norm(sums_of(records, size) - sums_of(one, size))) for one in neighbours
    ] or [0.0]


def sums_of(records: list[float], size: int) -> np.ndarray:
    return np.array([sum(records[first : first + size]) for first in range(0, len(records), size)])


@every_adjacency
def test_one_batch_is_the_gaussian_mechanism(adjacency):
    """B = 1: nothing is drawn, and what is claimed is guaranteed, except where records move."""
    mechanism = shuffled(adjacency, batches=1, steps=30, sigma=8.0)
    found = account_shuffled(mechanism, delta=1e-6)
    if adjacency != "add_remove":
        assert found.guaranteed[adjacency] == pytest.approx(found.claimed[adjacency], rel=1e-3)
    full = Mechanism(adjacency, sample_rate=1.0, num_steps=30, noise_multiplier=8.0)
    claimed = account_epsilon(full, delta=1e-6, method="closed_form").upper
    assert found.claimed[adjacency] == pytest.approx(claimed, rel=1e-3)


@every_adjacency
def test_a_claim_is_that_of_the_poisson_accountant(adjacency):
    found = account_shuffled(shuffled(batches=40, steps=120, sigma=0.9), delta=1e-6)
    poisson = Mechanism(adjacency, sample_rate=1 / 40, num_steps=120, noise_multiplier=0.9)
    assert [found.claimed[adjacency]] == account_epsilon_curve(poisson, steps=[120], delta=1e-6)
    assert found.claimed[adjacency] < found.guaranteed[adjacency]
    other = account_shuffled(shuffled(sigma=0.9), delta=1e-6, sample_rate=0.3)
    poisson = Mechanism(adjacency, sample_rate=0.3, num_steps=250, noise_multiplier=0.9)
    assert [other.claimed[adjacency]] == account_epsilon_curve(poisson, steps=[250], delta=1e-6)


def test_a_claim_that_no_accountant_gives_leaves_the_guarantee():
    found = account_shuffled(shuffled(batches=10_000, steps=20_000, sigma=0.01), delta=1e-5)
    assert np.isnan(found.claimed["substitute"])
    assert found.guaranteed["substitute"] > 10_000


@every_adjacency
def test_calibrated_noise_reaches_its_target(adjacency):
    mechanism = shuffled(adjacency, batches=12, steps=40)
    for epsilon, delta in ((0.3, 1e-4), (8.0, 1e-7)):
        noise = calibrate_shuffled(mechanism, epsilon=epsilon, delta=delta)
        reached = guaranteed_epsilon(mechanism.with_noise(noise), delta=delta)
        assert epsilon * (1 - 1e-3) <= reached <= epsilon
        mu = DISTANCES[adjacency] * sqrt(4) / noise  # 40 steps of 12: the fourth pass ends early
        assert gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(delta, rel=0.01)


def test_batches_of_a_pass_are_those_of_a_loader():
    torch_data = pytest.importorskip("torch.utils.data")
    cases = product(((1000, 300), (1000, 250), (7, 7), (7, 1), (8, 3)), (False, True))
    for (records, size), drop_last in cases:
        loader = torch_data.DataLoader(range(records), batch_size=size, drop_last=drop_last)
        batches = batches_of_pass(num_records=records, batch_size=size, drop_last=drop_last)
        assert batches == len(loader)
    assert batches_of_pass(num_records=1000, batch_size=300) == 4


def test_wrong_settings_are_named():
    for settings, message in (
        ({"batches": 0}, "batches_per_pass is 0"),
        ({"batches": 2.5}, "batches_per_pass is 2.5"),
        ({"steps": 0}, "num_steps is 0"),
        ({"sigma": -1.0}, "noise_multiplier is -1.0"),
        ({"adjacency": "other"}, "unknown adjacency 'other'"),
    ):
        with pytest.raises(InputError, match=message):
            shuffled(**settings)
    with pytest.raises(InputError, match="batch_size is 11, which is more than the 10 records"):
        batches_of_pass(num_records=10, batch_size=11)
    with pytest.raises(InputError, match="noise_multiplier is nan"):
        guaranteed_epsilon(shuffled(sigma=nan), delta=1e-5)


# --- the epsilon of simulated losses -----------------------------------------------------------


def gaussian_losses(mu: float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    normal = np.random.default_rng(seed).standard_normal((2, count))
    return mu * normal[0] + mu**2 / 2, mu * normal[1] - mu**2 / 2


def exceed(wrong: int, of: int, *, level: float) -> bool:
    """Whether so many are 4 Monte-Carlo errors more than the level."""
    return wrong > of * level + 4 * sqrt(of * level * (1 - level))


@pytest.mark.parametrize(("mu", "delta"), [(0.7, 0.01), (2.0, 1e-3)])
def test_simulated_epsilons_bracket_that_of_a_gaussian(mu, delta):
    truth = gdp_epsilon(mu=mu, delta=delta)
    bounds = [
        simulate_epsilon(
            *gaussian_losses(mu, 4_000, seed), delta=delta, significance=0.2, seed=seed
        )
        for seed in range(400)
    ]
    assert not exceed(sum(one.lower > truth for one in bounds), 400, level=0.2)
    assert not exceed(sum(one.upper < truth for one in bounds), 400, level=0.2)
    assert np.median([one.lower for one in bounds]) > 0.7 * truth
    large = simulate_epsilon(*gaussian_losses(mu, 1_000_000, 1), delta=delta)
    assert large.lower < large.estimate < large.upper
    assert large.upper - large.lower < 0.1 * truth
    assert large.lower <= truth <= large.upper


def test_a_level_of_simulated_epsilons_is_used():
    """With one direction that cannot exceed the other, half of the significance is spent."""
    mu, delta, wrong = 1.0, 0.01, 0
    for seed in range(1_000):
        losses = gaussian_losses(mu, 2_000, seed)[0], np.zeros(2_000)
        bound = simulate_epsilon(*losses, delta=delta, significance=0.4, seed=seed).lower
        wrong += bound > gdp_epsilon(mu=mu, delta=delta)
    assert wrong > 100
    assert not exceed(wrong, 1_000, level=0.2)


def test_simulated_epsilons_of_few_draws_bound_nothing():
    few = simulate_epsilon(np.full(100, 5.0), np.full(100, -5.0), delta=1e-5)
    assert few.upper == float("inf")
    assert few.lower < 5.0
    assert simulate_epsilon([0.0], [0.0], delta=0.1).lower == 0.0
    for world0, world1, message in (
        ([0.0], [0.0, nan], r"world1: ratio 1 is NaN"),
        ([], [0.0], r"world0 has shape \(0,\)"),
    ):
        with pytest.raises(InputError, match=message):
            simulate_epsilon(world0, world1, delta=0.1)
