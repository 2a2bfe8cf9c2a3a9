"""Runs that are killed at random moments end as if nothing had happened."""

import pytest
from kills import after_kills, differences
from sampling import some_of
from study import results, undisturbed

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", some_of(range(9), 9))
def test_a_killed_run_ends_as_another_and_retrains_only_what_was_lost(tmp_path, seed):
    """Nine studies with one to four kills each; one in CI, since a kill leaves least behind."""
    expected = undisturbed()
    seconds = float((expected / "seconds.txt").read_text())
    killed = after_kills(tmp_path, seed=seed, longest=seconds)
    assert differences(tmp_path, results(expected)) == []
    # Two jobs run at once: what they had just finished may not have been on record.
    assert killed.made_again <= 2
