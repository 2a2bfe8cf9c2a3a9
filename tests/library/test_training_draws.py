"""Philox and normals: published answers, plain NumPy, their law, and the noise in the weights."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binomtest, kstest, norm

from dpcanary.core.randomness import derived_seed, generator, philox_key
from dpcanary.errors import InputError
from dpcanary.training.kernels import philox
from dpcanary.training.noise import Noise
from dpcanary.training.slots import assigned_worlds, check_assignment
from dpcanary.training.training_settings import Purpose, WorldAssignment

SEED = 11
ALL_ONES = 0xFFFFFFFF
# Counter, key and words of philox4x32-10 in Random123's kat_vectors.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]  # fmt: skip
words_of_32_bits = st.integers(0, 2**32 - 1)
seeds = st.integers(0, 2**63)
lists_of_runs = st.lists(words_of_32_bits, min_size=1, max_size=5, unique=True)


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
def test_words_are_the_published_ones(counter, key, expected):
    drawn = philox.words(*(np.uint32(c) for c in counter), *(np.uint32(k) for k in key))
    assert tuple(int(word) for word in drawn) == expected
    assert tuple(int(word) for word in plain_words(counter, key)) == expected


@settings(max_examples=30)
@given(seed=st.integers(0, 2**63), purpose=st.integers(0, 30), index=st.sampled_from([0, 1, 2, 30]))
def test_a_stream_is_the_child_of_its_purpose(seed, purpose, index):
    """As if the seed had children for all purposes, and each of these had them for all runs."""
    of_purpose = np.random.SeedSequence(seed).spawn(purpose + 1)[purpose]
    of_run = of_purpose.spawn(index + 1)[index]
    expected = np.random.Generator(np.random.SFC64(of_run)).random(4)
    draws = generator(seed=seed, purpose=purpose, index=index).random(4)
    np.testing.assert_array_equal(draws, expected)
    if index == 0:
        assert generator(seed=seed, purpose=purpose).random() == expected[0]


def test_a_derived_seed_depends_on_seed_and_name_and_the_key_on_the_whole_seed():
    seeds = {derived_seed(seed=seed, name=name) for seed in (0, 1, 11) for name in ("a", "1", "1a")}
    assert len(seeds) == 9
    assert all(0 <= seed < 2**48 for seed in seeds)
    for seed in (11, 2**32 + 11, 2**63):  # the first two agree in their low 32 bits
        expected = np.random.SeedSequence(seed).generate_state(2, np.uint32)
        assert philox_key(seed=seed).tolist() == expected.tolist()


@settings(max_examples=40)
@given(
    width=st.integers(1, 70), seed=seeds, step=words_of_32_bits, runs=lists_of_runs,
    purpose=st.sampled_from(Purpose), factor=st.sampled_from([0.0, 0.04, 1.0, -2.0]),
    scale=st.sampled_from([0.0, 1.0, 1.7]),
)  # fmt: skip
def test_normals_are_box_muller_of_the_documented_words(
    width, seed, step, runs, purpose, factor, scale
):
    """Each row depends on its own run alone, so it is the same beside any others."""
    values = np.random.default_rng(0).normal(size=(len(runs), width)).astype(np.float32)
    noisy, turned = torch.from_numpy(values.copy()), torch.from_numpy(values[::-1].copy())
    options = {"factor": factor, "scale": scale, "step": step, "purpose": purpose}
    Noise(seed=seed).add(noisy, runs=torch.tensor(runs), **options)
    Noise(seed=seed).add(turned, runs=torch.tensor(runs[::-1]), **options)
    assert torch.equal(noisy, turned.flip(0))
    key = philox_key(seed=seed)
    for row, run in enumerate(runs):
        unit = plain_normals(width, key=key, step=step, run=run, purpose=purpose.value)
        expected = factor * values[row].astype(np.float64) + scale * unit
        np.testing.assert_allclose(noisy[row].numpy(), expected, rtol=1e-6, atol=2e-6)


@settings(max_examples=25)
@given(
    count=st.integers(1, 120), seed=seeds, step=words_of_32_bits, runs=lists_of_runs,
    purpose=st.sampled_from(Purpose), rate=st.floats(0.01, 1.0),
)  # fmt: skip
def test_samples_are_the_documented_words_below_the_rate(count, seed, step, runs, purpose, rate):
    key, threshold = philox_key(seed=seed), np.uint64(round(rate * 2**32))
    mask = np.full((len(runs), count), np.nan, np.float32)
    words = np.empty(mask.shape, np.uint32)
    philox.sample_mask(mask, threshold, key, step, np.array(runs), purpose.value)
    philox.random_words(words, key, step, np.array(runs), purpose.value)
    for row, run in enumerate(runs):
        expected = plain_row_of_words(count, key=key, step=step, run=run, purpose=purpose.value)
        assert np.array_equal(words[row], expected)
        assert np.array_equal(mask[row], (expected < threshold).astype(np.float32))


def test_normals_are_standard_normal() -> None:
    """Moments are within 4.5 standard errors; tail frequencies pass binomial tests."""
    drawn = np.zeros((100, 4_000), np.float32)
    options = {"factor": 0.0, "scale": 1.0, "runs": torch.arange(len(drawn)), "step": 0}
    Noise(seed=SEED).add(torch.from_numpy(drawn), **options)
    drawn = drawn.astype(np.float64)
    # For standard normal x, the variances of x, x^2, x^3 and x^4 are 1, 2, 15 and 96.
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((drawn**power).mean() - expected) < 4.5 * np.sqrt(variance / drawn.size)
    for deviations in (2.0, 3.0, 4.0):
        for tail in (drawn > deviations, drawn < -deviations):
            test = binomtest(int(tail.sum()), drawn.size, float(norm.sf(deviations)))
            assert test.pvalue > 1e-4
    assert kstest(drawn[::4].ravel(), norm.cdf).pvalue > 1e-3


def worlds_of(assignment: str, runs: Sequence[int], num_slots: int, *, seed: int) -> NDArray:
    options = {"runs": np.array(runs), "num_slots": num_slots, "seed": seed}
    return assigned_worlds(WorldAssignment(assignment), **options)


@settings(max_examples=40)
@given(half=st.integers(1, 5), seed=seeds, runs=lists_of_runs)
def test_worlds_are_the_parity_or_follow_from_the_documented_words(half, seed, runs):
    """So the worlds of a run are the same beside any others."""
    assert worlds_of("alternate", runs, 1, seed=seed).tolist() == [[run % 2] for run in runs]
    key, purpose = philox_key(seed=seed), Purpose.WORLDS.value
    for width in (2 * half, 2 * half - 1):
        coins = worlds_of("coins", runs, width, seed=seed)
        for row, run in enumerate(runs):
            words = plain_row_of_words(width, key=key, step=0, run=run, purpose=purpose)
            assert np.array_equal(coins[row], words >= 2**31)
            if width == 2 * half:  # the slots of the smaller words are in world 0
                halves = worlds_of("halves", [run], width, seed=seed)[0]
                assert np.array_equal(halves, words > np.sort(words)[half - 1])


def test_assignments_are_defined_for_some_numbers_of_slots() -> None:
    with pytest.raises(InputError, match=r"alternate is for one slot, and there are 3: .* use"):
        check_assignment(WorldAssignment.ALTERNATE, 3)
    with pytest.raises(InputError, match=r"halves needs an even number of slots; there are 3$"):
        check_assignment(WorldAssignment.HALVES, 3)
