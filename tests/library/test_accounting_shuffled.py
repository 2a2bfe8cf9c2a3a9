"""What shuffled batches guarantee: against a naive simulation of loops and against closed forms."""

from itertools import product
from math import exp, nan, sqrt

import numpy as np
import pytest
from accounts import upper_of
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dpcanary.accounting.noise_calibration import calibrate_shuffled
from dpcanary.accounting.privacy_losses import simulate_epsilon
from dpcanary.accounting.shuffled_epsilons import account_shuffled, guaranteed_epsilon
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism, batches_of_pass
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_delta, gdp_epsilon
from dpcanary.errors import InputError


def neighbour_of(adjacency: str, records: np.ndarray, index: int, size: int) -> np.ndarray:
    """The neighbour in the order of the records, or the records if there would be a batch less."""
    neighbour = records.copy()
    if adjacency != "add_remove":
        neighbour[index] = 0.0 if adjacency == "zero_out" else -records[index]
    elif len(records) % size != 1:
        # The last record takes the place of the one that is missing, and leaves its own.
        neighbour[index], neighbour[-1] = records[-1], 0.0
    return neighbour


def distance(adjacency: str) -> float:
    """The largest distance, in C, of two neighbours' sums, over positions and other records."""
    distances = []
    for (size, count), others, target in product(((2, 6), (3, 7)), (-1.0, 0.0, 1.0), (-1.0, 1.0)):
        for index in range(count):
            records = np.full(count, others)
            records[index] = target
            difference = records - neighbour_of(adjacency, records, index, size)
            sums = np.add.reduceat(difference, range(0, count, size))
            distances.append(float(np.linalg.norm(sums)))
    return max(distances)


DISTANCES = {adjacency: distance(adjacency) for adjacency in Adjacency}


def shuffled(adjacency="substitute", *, batches=50, steps=250, sigma=1.1) -> ShuffledMechanism:
    passes = {"batches_per_pass": batches, "num_steps": steps}
    return ShuffledMechanism(adjacency, noise_multiplier=sigma, **passes)


@given(
    st.sampled_from(Adjacency), st.integers(1, 60), st.integers(1, 400), st.floats(0.4, 30.0),
    st.floats(-16, -6),
)  # fmt: skip
@example("substitute", 50, 250, 1.1, -11)  # five whole passes
@example("add_remove", 50, 251, 0.4, -16)  # a sixth has begun
def test_a_guarantee_is_that_of_one_gaussian_for_each_pass(
    adjacency, batches, steps, sigma, log_delta
):
    mechanism = shuffled(adjacency, batches=batches, steps=steps, sigma=sigma)
    passes = len(range(0, steps, batches))
    assert mechanism.num_passes == passes
    mu, delta = DISTANCES[adjacency] * sqrt(passes) / sigma, exp(log_delta)
    epsilon = guaranteed_epsilon(mechanism, delta=delta)
    assert epsilon == pytest.approx(gdp_epsilon(mu=mu, delta=delta), rel=1e-12)


def test_a_claim_is_that_of_the_poisson_accountant():
    mechanism = shuffled(batches=40, steps=120, sigma=0.9)
    for given_rate, rate in ((None, 1 / 40), (0.3, 0.3)):
        epsilons = account_shuffled(mechanism, delta=1e-6, sample_rate=given_rate)
        for adjacency in Adjacency:
            parameters = {"adjacency": adjacency, "num_steps": 120, "noise_multiplier": 0.9}
            claimed = upper_of(**parameters, sample_rate=rate, delta=1e-6)
            assert epsilons.claimed[adjacency] == claimed
            guaranteed = guaranteed_epsilon(mechanism.under(adjacency), delta=1e-6)
            assert epsilons.guaranteed[adjacency] == guaranteed
    # A claim that no accountant gives leaves the guarantee.
    epsilons = account_shuffled(shuffled(batches=10_000, steps=20_000, sigma=0.01), delta=1e-5)
    assert np.isnan(epsilons.claimed["substitute"])
    assert epsilons.guaranteed["substitute"] > 10_000


@pytest.mark.parametrize("adjacency", Adjacency)
def test_calibrated_noise_reaches_its_target(adjacency):
    mechanism = shuffled(adjacency, batches=12, steps=40)
    for epsilon, delta in ((0.3, 1e-4), (8.0, 1e-7)):
        noise = calibrate_shuffled(mechanism, epsilon=epsilon, delta=delta)
        reached = guaranteed_epsilon(mechanism.with_noise(noise), delta=delta)
        assert epsilon * (1 - 1e-3) <= reached <= epsilon
        mu = DISTANCES[adjacency] * sqrt(4) / noise  # 40 steps of 12: the fourth pass ends early
        assert gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(delta, rel=0.01)


def test_batches_of_a_pass_are_those_of_a_loader():
    cases = product(((1000, 300), (1000, 250), (7, 7), (7, 1), (8, 3)), (False, True))
    for (records, size), drop_last in cases:
        loader = DataLoader(range(records), batch_size=size, drop_last=drop_last)
        batches = batches_of_pass(num_records=records, batch_size=size, drop_last=drop_last)
        assert batches == len(loader)
    for settings, message in (
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


def gaussian_losses(mu: float, count: int, seed: int) -> np.ndarray:
    """In both worlds, shape (worlds, draws)."""
    normal = np.random.default_rng(seed).standard_normal((2, count))
    return mu * normal + [[mu**2 / 2], [-(mu**2) / 2]]


def exceed(wrong: int, of: int, *, level: float) -> bool:
    """Whether so many are 4 Monte-Carlo errors more than the level."""
    return wrong > of * level + 4 * sqrt(of * level * (1 - level))


@pytest.mark.parametrize(("mu", "delta"), [(0.7, 0.01), (2.0, 1e-3)])
def test_simulated_epsilons_bracket_that_of_a_gaussian(mu, delta):
    truth = gdp_epsilon(mu=mu, delta=delta)
    options = {"delta": delta, "significance": 0.2}
    draws = (gaussian_losses(mu, 4_000, seed) for seed in range(400))
    bounds = [simulate_epsilon(*both, **options, seed=seed) for seed, both in enumerate(draws)]
    assert not exceed(sum(bound.lower > truth for bound in bounds), 400, level=0.2)
    assert not exceed(sum(bound.upper < truth for bound in bounds), 400, level=0.2)
    assert np.median([bound.lower for bound in bounds]) > 0.7 * truth
    worlds = gaussian_losses(mu, 1_000_000, 1)
    none = np.zeros(1_000_000)
    for world0, world1 in (worlds, (worlds[0], none), (none, worlds[1])):  # the larger one counts
        large = simulate_epsilon(world0, world1, delta=delta)
        assert large.lower < large.estimate < large.upper
        assert large.upper - large.lower < 0.1 * truth
        assert large.lower <= truth <= large.upper


def test_a_level_of_simulated_epsilons_is_used_and_few_draws_bound_nothing():
    """With one direction that cannot exceed the other, half of the significance is spent."""
    mu, delta, wrong = 1.0, 0.01, 0
    for seed in range(1_000):
        losses, _ = gaussian_losses(mu, 2_000, seed)
        options = {"delta": delta, "significance": 0.4, "seed": seed}
        bound = simulate_epsilon(losses, np.zeros(2_000), **options).lower
        wrong += bound > gdp_epsilon(mu=mu, delta=delta)
    assert wrong > 100
    assert not exceed(wrong, 1_000, level=0.2)
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
