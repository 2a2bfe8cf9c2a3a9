"""Streams of seeds, purposes and runs are those of NumPy's own tree, and none is another's."""

import numpy as np
import pytest

from dpcanary.randomness import derived_seed, generator


@pytest.mark.parametrize("seed", [0, 5, 2**40])
def test_a_stream_is_the_child_of_its_purpose(seed):
    """As if the seed had children for all purposes, and each of these had them for all runs."""
    for purpose, index in ((0, 0), (2, 3), (3, 2), (5, 0), (0, 5)):
        of_purpose = np.random.SeedSequence(seed).spawn(purpose + 1)[purpose]
        of_run = of_purpose.spawn(index + 1)[index]
        expected = np.random.Generator(np.random.SFC64(of_run)).random(4)
        found = generator(seed=seed, purpose=purpose, index=index).random(4)
        np.testing.assert_array_equal(found, expected)


def test_no_two_streams_are_the_same():
    keys = [(s, p, i) for s in range(3) for p in range(30) for i in range(20)]
    first = {float(generator(seed=s, purpose=p, index=i).random()) for s, p, i in keys}
    assert len(first) == len(keys)


def test_a_derived_seed_depends_on_seed_and_name():
    seeds = {derived_seed(seed=seed, name=name) for seed in (0, 1, 11) for name in ("a", "1", "1a")}
    assert len(seeds) == 9
    assert all(0 <= seed < 2**48 for seed in seeds)
