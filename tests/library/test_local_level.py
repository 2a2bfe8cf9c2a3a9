"""The local level against closed forms and simulation, and its table against computed levels."""

import numpy as np
import pytest
from scipy.special import betainc
from scipy.stats import beta

from dpcanary.errors import InputError
from dpcanary.estimation.error_rates import (
    LEVEL,
    LOCAL_LEVELS,
    MOST_TOLD_APART,
    compute_local_level,
    failure_probability,
    simultaneous_local_level,
)


@pytest.mark.parametrize("level", [0.5, 0.1, 0.001])
def test_one_score_has_one_bound_and_two_are_an_integral(level):
    assert failure_probability(num_scores=1, local_level=level) == pytest.approx(level, abs=1e-12)
    low, high = beta.ppf(1 - level, [1, 2], [2, 1])
    # P(U_(1) <= low, U_(2) <= high) = 2 * area of {x < low, x < y < high}.
    survival = 2 * (low * high - low**2 / 2)
    failure = failure_probability(num_scores=2, local_level=level)
    assert failure == pytest.approx(1 - survival, abs=1e-12)


@pytest.mark.parametrize("num_scores", [10, 300])
def test_against_simulation(num_scores):
    repeats, level = 20_000, 0.002
    uniform = np.sort(np.random.default_rng(5).random((repeats, num_scores)), axis=1)
    ranks = np.arange(1, num_scores + 1)
    smallest = (1 - betainc(ranks, num_scores - ranks + 1.0, uniform)).min(axis=1)
    exact = failure_probability(num_scores=num_scores, local_level=level)
    error = np.sqrt(exact * (1 - exact) / repeats)
    assert abs((smallest < level).mean() - exact) < 3.5 * error


@pytest.mark.parametrize("num_scores", [1, 7, 500, 1250])
@pytest.mark.parametrize("level", [0.025, 0.1])
def test_solution_keeps_the_level_and_wastes_little(num_scores, level):
    local = compute_local_level(num_scores=num_scores, level=level)
    failure = failure_probability(num_scores=num_scores, local_level=local)
    assert 0.995 * level <= failure <= level


def test_the_table_is_exact_where_checked():
    for num_scores, local in (LOCAL_LEVELS[0], LOCAL_LEVELS[12], LOCAL_LEVELS[25]):
        failure = failure_probability(num_scores=num_scores, local_level=local)
        assert 0.994 * LEVEL <= failure <= LEVEL


def test_the_table_falls_in_small_steps():
    sizes, levels = map(np.array, zip(*LOCAL_LEVELS, strict=True))
    assert (np.diff(levels) < 0).all()
    assert (levels[1:] / levels[:-1]).min() > 0.97
    assert (sizes[1:] / sizes[:-1]).max() < 1.101
    assert sizes[-1] == MOST_TOLD_APART


def test_between_entries_the_next_larger_one_serves():
    sizes = [size for size, _ in LOCAL_LEVELS]
    between = (sizes[3] + sizes[4]) // 2
    assert simultaneous_local_level(num_scores=between, level=LEVEL) == LOCAL_LEVELS[4][1]
    assert simultaneous_local_level(num_scores=sizes[4], level=LEVEL) == LOCAL_LEVELS[4][1]


@pytest.mark.parametrize("level", [0.005, 0.2])
def test_the_table_is_not_for_other_levels(level):
    local = simultaneous_local_level(num_scores=1_400, level=level)
    failure = failure_probability(num_scores=1_400, local_level=local)
    assert 0.994 * level <= failure <= level


@pytest.mark.parametrize(("num_scores", "level"), [(0, 0.025), (10, 0.0), (10, 1.0)])
def test_bad_arguments(num_scores, level):
    with pytest.raises(InputError, match="no local level"):
        simultaneous_local_level(num_scores=num_scores, level=level)
