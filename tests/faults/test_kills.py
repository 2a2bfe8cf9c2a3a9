"""Runs that are killed at random moments end as if nothing had happened."""

import time

import pytest
from kills import after_kills, differences
from study import make, results, run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What a run that nothing disturbs makes, and its seconds."""
    folder = make(tmp_path_factory.mktemp("whole"))
    start = time.monotonic()
    run(folder)
    return results(folder), time.monotonic() - start


@pytest.mark.parametrize("seed", range(9))
def test_a_killed_run_ends_as_another(undisturbed, tmp_path, seed):
    """Nine studies with one to four kills each."""
    expected, longest = undisturbed
    after_kills(tmp_path, seed=seed, longest=longest)
    assert differences(tmp_path, expected) == []
