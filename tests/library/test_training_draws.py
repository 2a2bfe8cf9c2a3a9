"""Philox and normals: published answers, plain NumPy, their law, and the noise in the weights."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom, binomtest, chi2, kstest, norm
from torch import nn

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import GradientCanary
from dpcanary.errors import InputError
from dpcanary.randomness import generator, philox_key
from dpcanary.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.kernels import philox
from dpcanary.training.noise import Noise
from dpcanary.training.settings import Initialisation, Optimizer, Purpose, WorldAssignment
from dpcanary.training.slots import assigned_worlds

SEED = 11
MODULES_WITH_PURPOSES = [
    "adversaries.settings", "datasets.source", "mechanism_check.measurements",
    "own_training.one_run", "training.settings",
]  # fmt: skip
EVERY_PURPOSE = [
    purpose
    for name in MODULES_WITH_PURPOSES
    for purpose in import_module(f"dpcanary.{name}").Purpose
]
ALL_ONES = 0xFFFFFFFF
# Counter, key and words of philox4x32-10 in Random123's kat_vectors.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def draw(
    width: int,
    runs: Sequence[int],
    *,
    step: int = 0,
    seed: int = SEED,
    purpose: Purpose = Purpose.NOISE,
) -> NDArray[np.float64]:
    """Standard normals as the ensemble gets them, shape (runs, width)."""
    out = torch.zeros(len(runs), width)
    indices = torch.tensor(runs, dtype=torch.int64)
    Noise(seed=seed).add(out, factor=0.0, scale=1.0, runs=indices, step=step, purpose=purpose)
    return out.numpy().astype(np.float64)


# --- a plain Philox and Box-Muller -------------------------------------------------------------


def plain_words(
    counter: Sequence[NDArray[np.int64] | int], key: Sequence[int]
) -> tuple[NDArray[np.uint64], ...]:
    """Philox4x32-10 as in its paper, on 64-bit integers that hold 32-bit numbers."""
    mask, shift = np.uint64(ALL_ONES), np.uint64(32)
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c).astype(np.uint64) for c in counter))
    k0, k1 = int(key[0]), int(key[1])
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & mask
        c2, c3 = (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & ALL_ONES, (k1 + 0xBB67AE85) & ALL_ONES
    return c0, c1, c2, c3


def plain_row_of_words(
    width: int, *, key: Sequence[int], step: int, run: int, purpose: int
) -> NDArray[np.uint64]:
    """Word p of a row is word p div n of block p mod n, of n = ceil(width / 4) blocks."""
    blocks = -(-width // 4)
    positions = np.arange(width)
    words = np.stack(plain_words((np.arange(blocks), step, run, purpose), key))
    return words[positions // blocks, positions % blocks]


def plain_normals(
    width: int, *, key: Sequence[int], step: int, run: int, purpose: int
) -> NDArray[np.float64]:
    """Box-Muller in double precision on the words of whole blocks, laid out in quarters."""
    blocks = -(-width // 4)
    words = plain_row_of_words(4 * blocks, key=key, step=step, run=run, purpose=purpose)
    a, b = words.reshape(4, blocks)[0::2], words.reshape(4, blocks)[1::2]
    # The uniform is a float32, which rounds it to 24 bits. Near 1, where the radius is close to 0,
    # this error exceeds those of all later operations.
    uniform = ((a >> np.uint64(1)).astype(np.float32) + np.float32(0.5)).astype(np.float64) / 2**31
    radius = np.sqrt(-2.0 * np.log(uniform))
    sign = np.where(b >> np.uint64(31), -1.0, 1.0)
    turned = (b >> np.uint64(30)) & np.uint64(1) == 1
    angle = ((b & np.uint64(2**30 - 1)).astype(np.float64) / 2**30 - 0.5) * np.pi / 2
    angle = np.where(turned, np.pi / 2 - angle, angle)
    normals = np.empty((4, blocks))
    normals[0::2], normals[1::2] = sign * radius * np.cos(angle), sign * radius * np.sin(angle)
    return normals.ravel()[:width]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_words_are_the_published_ones(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    found = philox.words(*(np.uint32(c) for c in counter), *(np.uint32(k) for k in key))
    assert tuple(int(word) for word in found) == expected
    assert tuple(int(word) for word in plain_words(counter, key)) == expected


def test_the_key_is_expanded_from_the_whole_seed() -> None:
    for seed in (0, SEED, 2**40 + 3, 2**63):
        expected = np.random.SeedSequence(seed).generate_state(2, np.uint32)
        assert philox_key(seed=seed).tolist() == expected.tolist()
    # These seeds agree in their low 32 bits.
    assert philox_key(seed=3).tolist() != philox_key(seed=2**32 + 3).tolist()


@pytest.mark.parametrize("width", [*range(1, 10), 64, 1000])
def test_normals_are_box_muller_of_the_documented_words(width: int) -> None:
    runs, steps = [0, 1, 7, 1_000_003, 2**32 - 1], [0, 1, 999, 2**31 + 5]
    key = philox_key(seed=SEED)
    for step in steps:
        for purpose in (Purpose.NOISE, Purpose.OUT_OF_SPAN):
            found = draw(width, runs, step=step, purpose=purpose)
            for row, run in enumerate(runs):
                expected = plain_normals(width, key=key, step=step, run=run, purpose=purpose.value)
                np.testing.assert_allclose(found[row], expected, rtol=1e-6, atol=1e-6)


def test_samples_are_the_documented_words_below_the_rate() -> None:
    key, runs, step = philox_key(seed=SEED), np.array([0, 5, 2**31 + 1]), 3
    purpose = Purpose.BATCHES.value
    for num_records in (1, 2, 3, 4, 5, 9, 102, 1000):
        for rate in (0.01, 0.3, 0.97, 1.0):
            mask = np.full((len(runs), num_records), np.nan, np.float32)
            threshold = np.uint64(round(rate * 2**32))
            philox.sample_mask(mask, threshold, key, step, runs, purpose)
            for row, run in zip(mask, runs.tolist(), strict=True):
                words = plain_row_of_words(
                    num_records, key=key, step=step, run=run, purpose=purpose
                )
                assert np.array_equal(row, (words < rate * 2**32).astype(np.float32))


def test_noise_is_scaled_and_added_to_a_multiple_of_the_values() -> None:
    runs, width = [4, 9, 2], 37
    unit = draw(width, runs, step=6)
    there = np.random.default_rng(0).normal(size=unit.shape).astype(np.float32)
    for factor, scale in ((1.0, 0.0), (0.0, 2.5), (0.04, 1.7), (-2.0, 1.0)):
        out = torch.from_numpy(there.copy())
        Noise(seed=SEED).add(out, factor=factor, scale=scale, runs=torch.tensor(runs), step=6)
        expected = factor * there.astype(np.float64) + scale * unit
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6, atol=1e-6)


# --- what a draw depends on --------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3, 6, 64, 101])
def test_a_run_draws_the_same_beside_any_others_and_in_any_order(width: int) -> None:
    whole = draw(width, range(40), step=5)
    assert np.array_equal(draw(width, range(39, -1, -1), step=5), whole[::-1])
    assert np.array_equal(draw(width, [17], step=5)[0], whole[17])
    assert np.array_equal(draw(width, [8, 31, 8], step=5), whole[[8, 31, 8]])
    # Neighbours differ, so the comparisons above are meaningful.
    assert (whole[1:] != whole[:-1]).all()


# --- their law ---------------------------------------------------------------------------------


def test_normals_are_standard_normal() -> None:
    """Moments are within 4.5 standard errors; tail frequencies pass binomial tests."""
    drawn = draw(4_000, range(1_000))
    count = drawn.size
    # For standard normal x, the variances of x, x^2, x^3 and x^4 are 1, 2, 15 and 96.
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((drawn**power).mean() - expected) < 4.5 * np.sqrt(variance / count)
    for deviations in (3.0, 4.0, 4.5):
        for tail in (drawn > deviations, drawn < -deviations):
            test = binomtest(int(tail.sum()), count, float(norm.sf(deviations)))
            assert test.pvalue > 1e-4
    assert np.abs(drawn).max() < 6.7
    assert kstest(drawn[::4].ravel(), norm.cdf).pvalue > 1e-3


def assert_uncorrelated(rows: NDArray[np.float64]) -> None:
    """The correlation of each pair of independent rows of n values is about N(0, 1/n).

    Their squares are compared as well, since both normals of a pair come from one radius.
    """
    for values in (rows, rows**2):
        pairs = np.corrcoef(values)[np.triu_indices(len(rows), 1)] * np.sqrt(rows.shape[1])
        assert np.abs(pairs).max() < norm.isf(1e-4 / len(pairs))
        assert abs((pairs**2).mean() - 1.0) < 4.5 * np.sqrt(2.0 / len(pairs))


def test_runs_steps_and_positions_are_independent() -> None:
    assert_uncorrelated(draw(20_000, [*range(40), 10**6, 2**31, 2**32 - 1]))
    drawn = [draw(20, range(1_000), step=step).ravel() for step in [*range(40), 2**31, 2**32 - 1]]
    assert_uncorrelated(np.stack(drawn))
    # Within a block of four, and between the same positions of different blocks.
    assert_uncorrelated(draw(40, range(20_000)).T)
    assert_uncorrelated(draw(7, range(20_000)).T)


def test_purposes_and_seeds_are_independent() -> None:
    drawn = [
        draw(20, range(1_000), seed=seed, purpose=purpose).ravel()
        for seed in (0, 1, 2, 3, 2**32)
        for purpose in EVERY_PURPOSE
    ]
    assert_uncorrelated(np.stack(drawn))


def test_streams_of_different_purposes_seeds_and_indices_are_independent() -> None:
    keys = list(product((0, 1, 2), EVERY_PURPOSE, (0, 1, 2)))
    streams = [generator(seed=s, purpose=p, index=i).standard_normal(4_000) for s, p, i in keys]
    assert_uncorrelated(np.stack(streams))


# --- worlds ------------------------------------------------------------------------------------


def worlds_of(
    assignment: str, runs: Sequence[int], num_slots: int, *, seed: int = SEED
) -> NDArray[np.int64]:
    return assigned_worlds(
        WorldAssignment(assignment), runs=np.array(runs), num_slots=num_slots, seed=seed
    )


def test_one_slot_alternates() -> None:
    assert worlds_of("alternate", [4, 1, 2, 2**31 + 1], 1).tolist() == [[0], [1], [0], [1]]


@pytest.mark.parametrize("num_slots", [1, 4, 7])
def test_coins_are_the_highest_bits_of_the_documented_words(num_slots: int) -> None:
    key, runs = philox_key(seed=SEED), [0, 9, 2**31 + 1]
    for run, found in zip(runs, worlds_of("coins", runs, num_slots), strict=True):
        words = plain_row_of_words(
            num_slots, key=key, step=0, run=run, purpose=Purpose.WORLDS.value
        )
        assert np.array_equal(found, words >= 2**31)


def test_coins_are_fair_and_independent() -> None:
    drawn = worlds_of("coins", range(8_000), 20)
    for column in drawn.T:
        assert binomtest(int(column.sum()), len(column), 0.5).pvalue > 1e-3 / 20
    assert_uncorrelated(drawn.T.astype(np.float64))  # slots
    assert_uncorrelated(drawn.reshape(40, -1).astype(np.float64))  # runs
    seeds = [worlds_of("coins", range(500), 20, seed=seed).ravel() for seed in (0, 1, 2**32)]
    assert_uncorrelated(np.stack(seeds).astype(np.float64))


def test_every_half_of_the_slots_is_as_likely() -> None:
    drawn = worlds_of("halves", range(6_000), 4)
    assert (drawn.sum(axis=1) == 2).all()
    halves, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(halves) == 6
    assert chi2.sf(np.sum((counts - 1_000) ** 2) / 1_000, 5) > 1e-3
    one_run_later = np.all(drawn[1:] == drawn[:-1], axis=1)
    assert binomtest(int(one_run_later.sum()), len(one_run_later), 1 / 6).pvalue > 1e-3


@pytest.mark.parametrize("assignment", ["coins", "halves"])
def test_the_worlds_of_a_run_are_the_same_beside_any_others(assignment: str) -> None:
    whole = worlds_of(assignment, range(40), 6)
    assert np.array_equal(worlds_of(assignment, [31, 8], 6), whole[[31, 8]])
    assert (whole[1:] != whole[:-1]).any()


def test_assignments_that_are_not_defined_for_the_number_of_slots() -> None:
    canaries = [GradientCanary(coordinate=k, target=k) for k in range(3)]
    for name, message in (
        ("alternate", r"alternate is for one slot, and there are 3: .* use"),
        ("halves", r"halves needs an even number of slots; there are 3$"),
    ):
        with pytest.raises(InputError, match=message):
            train_ensemble(
                module=nn.Linear(NUM_FEATURES, 3),
                records=records_with_a_dead_feature(),
                canary=canaries,
                dpsgd=SETTINGS,
                runs=4,
                seed=SEED,
                worlds=name,
            )


# --- in the weights ----------------------------------------------------------------------------

N, NUM_FEATURES, DEAD, TARGET = 24, 6, 2, 4
SETTINGS = DPSGD(
    noise_multiplier=0.9,
    max_grad_norm=1.3,
    learning_rate=0.8,
    record_steps=(1, 6),
    sample_rate=0.25,
)


def records_with_a_dead_feature() -> Records:
    """Weights of the dead feature have no gradient, so they hold canary and noise alone."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(N, NUM_FEATURES)).astype(np.float32)
    features[:, DEAD] = 0.0
    return Records(features, rng.integers(0, 3, N))


@pytest.mark.parametrize("model", ["linear", "perceptron"])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_noise_and_canary_reach_the_weights_as_the_mechanism_says(
    adjacency: Adjacency, model: str
) -> None:
    """Over T steps, the coordinate is -rate C / (q N) times +-Bin(T, q) + N(0, T sigma^2)."""
    linear = nn.Linear(NUM_FEATURES, 3)
    perceptron = nn.Sequential(nn.Linear(NUM_FEATURES, 3), nn.Tanh(), nn.Linear(3, 3))
    dpsgd = replace(SETTINGS, adjacency=adjacency)
    q, sigma = dpsgd.sample_rate, dpsgd.noise_multiplier
    result = train_ensemble(
        module=linear if model == "linear" else perceptron,
        records=records_with_a_dead_feature(),
        canary=GradientCanary(coordinate=NUM_FEATURES + DEAD, target=TARGET),
        dpsgd=dpsgd,
        runs=range(4_000),
        seed=SEED,
        initialisation=Initialisation.ZEROS,
    )
    rate = 0.8 * dpsgd.max_grad_norm / (q * N)
    sums = -result.observations.astype(np.float64) / rate
    for column, num_steps in enumerate(dpsgd.record_steps):
        counts = np.arange(num_steps + 1)
        weights = binom.pmf(counts, num_steps, q)
        deviation = sigma * np.sqrt(num_steps)
        for world, sign in ((0, 1.0), (1, -1.0 if adjacency is Adjacency.SUBSTITUTE else 0.0)):
            found, means = sums[result.worlds[:, 0] == world, column, 0], sign * counts

            def cdf(x: NDArray[np.float64], means=means, deviation=deviation, weights=weights):
                return norm.cdf((x[:, None] - means) / deviation) @ weights

            assert kstest(found, cdf).pvalue > 1e-3
            variance = num_steps * (sigma**2 + sign**2 * q * (1 - q))
            error = np.sqrt(variance / len(found))
            assert abs(found.mean() - sign * q * num_steps) < 4.5 * error


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.MOMENTUM])
@pytest.mark.parametrize("falling", [False, True])
def test_variance_of_a_coordinate_without_gradient_is_the_closed_form(
    optimizer: Optimizer, falling: bool
) -> None:
    """By a chi-square test on such coordinates in several quarters of a row of noise.

    Without momentum the variance is sum_t (rate_t sigma C / (q N))^2; with it, step s moves the
    weight by its noise times the sum over t >= s of rate_t m^(t - s).
    """
    num_steps, runs, momentum = 6, 3_000, 0.9 if optimizer is Optimizer.MOMENTUM else 0.0
    rates = [0.8 / (t + 1 if falling else 1) for t in range(num_steps)]
    dpsgd = replace(
        SETTINGS, optimizer=optimizer, learning_rate=rates.__getitem__, record_steps=(num_steps,)
    )
    result = train_ensemble(
        module=nn.Linear(NUM_FEATURES, 3),
        records=records_with_a_dead_feature(),
        canary=GradientCanary(coordinate=0, target=TARGET),
        dpsgd=dpsgd,
        runs=range(runs),
        seed=SEED,
        initialisation=Initialisation.ZEROS,
        keep_parameters=True,
    )
    assert result.parameters is not None
    steps = [
        sum(rates[t] * momentum ** (t - s) for t in range(s, num_steps)) for s in range(num_steps)
    ]
    unit = dpsgd.noise_multiplier * dpsgd.max_grad_norm / (dpsgd.sample_rate * N)
    expected = unit**2 * np.sum(np.square(steps))
    dead = result.parameters[:, [DEAD, NUM_FEATURES + DEAD, 2 * NUM_FEATURES + DEAD]]
    for column in dead.T.astype(np.float64):
        statistic = np.sum(column**2) / expected
        assert 1e-4 < chi2.cdf(statistic, runs) < 1 - 1e-4
        assert kstest(column / np.sqrt(expected), norm.cdf).pvalue > 1e-3
    assert_uncorrelated(dead.T.astype(np.float64))
