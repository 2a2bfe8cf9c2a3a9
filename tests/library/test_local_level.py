"""The local level, its table, and the counts of errors that are distinguished among many scores."""

import numpy as np
import pytest
from scipy.special import betainc
from scipy.stats import beta

from dpcanary.errors import InputError
from dpcanary.estimation import error_rates
from dpcanary.estimation.error_rates import LEVEL, LOCAL_LEVELS, MOST_DISTINCT, distinct_counts


def failure(num_scores: int, level: float) -> float:
    return error_rates.failure_probability(num_scores=num_scores, local_level=level)


@pytest.mark.parametrize("level", [0.5, 0.1, 0.001])
def test_one_score_has_one_bound_and_two_are_an_integral(level):
    assert failure(1, level) == pytest.approx(level, abs=1e-12)
    low, high = beta.ppf(1 - level, [1, 2], [2, 1])
    # P(U_(1) <= low, U_(2) <= high) = 2 * area of {x < low, x < y < high}.
    assert failure(2, level) == pytest.approx(1 - 2 * (low * high - low**2 / 2), abs=1e-12)


@pytest.mark.parametrize("num_scores", [10, 300, 700])
def test_against_simulation(num_scores, few_distinct):
    repeats, level = 10_000, 0.01
    ranks = distinct_counts(num_scores)[:-1] + 1
    assert (len(ranks) < num_scores) == (num_scores > 300)
    uniform = np.sort(np.random.default_rng(5).random((repeats, num_scores)), axis=1)
    least = (1 - betainc(ranks, num_scores - ranks + 1.0, uniform[:, ranks - 1])).min(axis=1)
    exact = failure(num_scores, level)
    assert abs((least < level).mean() - exact) < 3.5 * np.sqrt(exact * (1 - exact) / repeats)


@pytest.mark.parametrize(("num_scores", "level"), [
    (1, 0.025), (7, 0.1), (500, 0.025), (1_400, 0.005), (1_400, 0.2),
])  # fmt: skip
def test_solution_keeps_the_level_and_wastes_little(num_scores, level):
    local = error_rates.simultaneous_local_level(num_scores=num_scores, level=level)
    assert 0.994 * level <= failure(num_scores, local) <= level


def test_the_table_is_exact_where_checked_and_falls_in_small_steps():
    for num_scores, local in (LOCAL_LEVELS[0], LOCAL_LEVELS[12], LOCAL_LEVELS[20]):
        assert 0.994 * LEVEL <= failure(num_scores, local) <= LEVEL
    sizes, levels = np.array(LOCAL_LEVELS).T
    assert (np.diff(levels) < 0).all()
    assert (levels[1:] / levels[:-1]).min() > 0.97
    assert (sizes[1:] / sizes[:-1]).max() < 1.101
    assert sizes[-1] == MOST_DISTINCT
    # Between entries the next larger one serves.
    for size in ((sizes[3] + sizes[4]) // 2, sizes[4]):
        assert error_rates.simultaneous_local_level(num_scores=int(size), level=LEVEL) == levels[4]


def test_what_has_no_local_level_is_refused(monkeypatch):
    for num_scores, level in ((0, 0.025), (10, 0.0), (10, 1.0)):
        with pytest.raises(InputError, match="no local level"):
            error_rates.simultaneous_local_level(num_scores=num_scores, level=level)
    monkeypatch.setattr(error_rates, "failure_probability", lambda **_: 1e-7)
    with pytest.raises(InputError, match="beyond the precision of rule 'simultaneous'"):
        error_rates.compute_local_level(num_scores=400_000, level=1e-9)


@pytest.mark.parametrize(("name", "value", "error"), [
    pytest.param("_LARGE", 0, 1e-10, id="Stirling's series"),
    # Steps of thousands of counts occur with a million scores.
    pytest.param("_LONG", 1, 1e-9, id="Fourier transforms"),
])  # fmt: skip
def test_other_ways_to_compute_change_no_digit_that_counts(name, value, error, monkeypatch):
    exact = [failure(2_000, level) for level in (1e-3, 0.01)]
    monkeypatch.setattr(error_rates, name, value)
    assert [failure(2_000, level) for level in (1e-3, 0.01)] == pytest.approx(exact, abs=error)


@pytest.mark.parametrize("num_scores", [MOST_DISTINCT + 1, 1_000_000, 10_000_001])
def test_of_many_scores_counts_are_dense_where_they_are_few(num_scores):
    assert [*distinct_counts(MOST_DISTINCT)] == [*range(MOST_DISTINCT + 1)]
    counts = distinct_counts(num_scores)
    assert (np.diff(counts) > 0).all()
    assert len(counts) < 2_600
    assert [*counts[:256]] == [*range(256)]
    assert [*(num_scores - counts[::-1])] == [*counts]
    # In standard deviations of a count k, steps are the same everywhere.
    half = counts[(counts > 2_000) & (counts < num_scores / 2)]
    steps = np.diff(half) / np.sqrt(half[1:])
    assert steps.max() < 1.05 * np.sqrt(2 * num_scores) / 1_024 + 1 / np.sqrt(2_000)
    errors = np.array([0, 3, 255, 1_000, num_scores // 2 + 1, num_scores])
    rounded = error_rates.next_distinct(errors, num_scores)
    assert np.isin(rounded, counts).all()
    assert [*rounded] == [counts[counts >= error].min() for error in errors]
