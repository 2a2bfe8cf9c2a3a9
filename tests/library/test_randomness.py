"""Streams of seeds, purposes and runs are those of NumPy's own tree, and all differ."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcanary.randomness import derived_seed, generator, philox_key


@settings(max_examples=30)
@given(seed=st.integers(0, 2**63), purpose=st.integers(0, 30), index=st.sampled_from([0, 1, 2, 30]))
def test_a_stream_is_the_child_of_its_purpose(seed, purpose, index):
    """As if the seed had children for all purposes, and each of these had them for all runs."""
    of_purpose = np.random.SeedSequence(seed).spawn(purpose + 1)[purpose]
    of_run = of_purpose.spawn(index + 1)[index]
    expected = np.random.Generator(np.random.SFC64(of_run)).random(4)
    found = generator(seed=seed, purpose=purpose, index=index).random(4)
    np.testing.assert_array_equal(found, expected)
    if index == 0:
        assert generator(seed=seed, purpose=purpose).random() == expected[0]


def test_a_derived_seed_depends_on_seed_and_name():
    seeds = {derived_seed(seed=seed, name=name) for seed in (0, 1, 11) for name in ("a", "1", "1a")}
    assert len(seeds) == 9
    assert all(0 <= seed < 2**48 for seed in seeds)


def test_the_key_is_expanded_from_the_whole_seed():
    for seed in (0, 11, 2**40 + 3, 2**63):
        expected = np.random.SeedSequence(seed).generate_state(2, np.uint32)
        assert philox_key(seed=seed).tolist() == expected.tolist()
    # These seeds agree in their low 32 bits.
    assert philox_key(seed=3).tolist() != philox_key(seed=2**32 + 3).tolist()
