"""How often bounds from ranks of secrets exceed the truth, in audits of known mechanisms.

A bound exceeds the truth only if the truth is refuted. So audits count in which it is.
"""

from collections.abc import Callable
from functools import cache, partial
from math import exp, sqrt
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from dpcanary.core.adjacency import Adjacency
from dpcanary.estimation import RankRule, estimate_epsilon_from_ranks, ranks_of_truth
from dpcanary.estimation.families import GDP, Family, direct_family
from dpcanary.estimation.ranks.rank_laws import Lists, curve_of_family, largest_chances
from dpcanary.estimation.ranks.rank_methods import RANK_RULES, GuessedSecrets, mahloujifar_refutes
from tests.sampling import exhaustive
from tests.statistics.simulated import SIGNIFICANCE, allowed

Ranks = NDArray[np.int64]
Draw = Callable[[np.random.Generator, int, int], Ranks]  # of m secrets among k candidates

DELTA = 1e-5
SUBSTITUTE, ADD_REMOVE = Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE


def gaussian(mu: float) -> Draw:
    """N(mu / sqrt(2), 1) at the true one of k coordinates, N(0, 1) at the others: mu-GDP.

    Without the record, all are N(0, 1): under add/remove adjacency it is (mu / sqrt(2))-GDP.
    """
    return lambda rng, m, k: 1 + rng.binomial(k - 1, ndtr(-rng.normal(mu / sqrt(2), 1.0, m)))


def rounded(mu: float) -> Draw:
    """Scores in whole numbers, so that many are tied."""

    def draw(rng: np.random.Generator, m: int, k: int) -> Ranks:
        truth = rng.integers(0, k, m)
        scores = rng.normal(0.0, 1.0, (m, k))
        scores[np.arange(m), truth] += mu / sqrt(2)
        return ranks_of_truth(scores=np.round(scores), truth=truth)

    return draw


def in_list(rng: np.random.Generator, right: NDArray[np.bool_], k: int, size: int) -> Ranks:
    """A rank in the list where the guess is right, otherwise after it, both uniform."""
    inside = rng.integers(1, size + 1, len(right))
    return np.where(right, inside, rng.integers(size + 1, k + 1, len(right)))


def response(epsilon: float) -> Draw:
    """Randomised response over k values."""
    other = exp(-epsilon)
    return lambda rng, m, k: in_list(rng, rng.random(m) < 1 / (1 + (k - 1) * other), k, 1)


@cache
def largest_chance(family: Family, theta: float, k: int, size: int) -> float:
    curve = curve_of_family(family, theta)
    [chance] = largest_chances(curve, [size], Lists(k, size, SUBSTITUTE))
    return float(chance)


def worst(family: Family, theta: float, size: int) -> Draw:
    """A random list of values that has the true one in it as often as the curve allows."""
    largest = partial(largest_chance, family, theta)
    return lambda rng, m, k: in_list(rng, rng.random(m) < largest(k, size), k, size)


def silent(draw: Draw) -> Draw:
    """A public coin decides for all secrets together whether anything is released."""
    return lambda rng, m, k: draw(rng, m, k) if rng.random() < 0.5 else rng.integers(1, k + 1, m)


def revealing(epsilon: float, probability: float) -> Draw:
    """A public coin decides, with this probability, that all secrets are released as they are."""
    draw = response(epsilon)
    return lambda rng, m, k: np.ones(m, int) if rng.random() < probability else draw(rng, m, k)


class Cell(NamedTuple):
    """A mechanism, and a rule that must not refute its truth too often."""

    draw: Draw
    family: Family
    truth: float
    k: int
    m: int
    rule: RankRule
    size: int = 1
    adjacency: Adjacency = SUBSTITUTE


DIRECT, REVEALING = direct_family(DELTA), direct_family(0.02)
SINGLE, MAHLOUJIFAR, STEINKE, COUNT, BITS = RankRule
CELLS = {
    "gaussian, 2": Cell(gaussian(1.0), GDP, 1.0, 2, 100, MAHLOUJIFAR),
    "gaussian, 10^6": Cell(gaussian(4.0), GDP, 4.0, 10**6, 100, COUNT),
    "gaussian, single": Cell(gaussian(4.0), GDP, 4.0, 10**4, 1, SINGLE),
    "add/remove": Cell(gaussian(3 * sqrt(2)), GDP, 3.0, 100, 1, SINGLE, adjacency=ADD_REMOVE),
    "add/remove, bits": Cell(gaussian(sqrt(2)), GDP, 1.0, 2, 50, BITS, adjacency=ADD_REMOVE),
    "gaussian, bits": Cell(gaussian(2.0), GDP, 2.0, 10, 50, BITS),
    "gaussian, list": Cell(gaussian(2.0), GDP, 2.0, 100, 200, MAHLOUJIFAR, size=10),
    "rounded": Cell(rounded(2.0), GDP, 2.0, 10, 50, BITS),
    "rounded, count": Cell(rounded(2.0), GDP, 2.0, 100, 50, COUNT, size=3),
    "response": Cell(response(2.0), DIRECT, 2.0, 10, 1000, COUNT),
    "response, steinke": Cell(response(1.0), DIRECT, 1.0, 10, 1000, STEINKE),
    "response, mahloujifar": Cell(response(3.0), DIRECT, 3.0, 1000, 100, MAHLOUJIFAR),
    "response, bits": Cell(response(8.0), DIRECT, 8.0, 10**4, 100, BITS),
    "response, single": Cell(response(10.0), DIRECT, 10.0, 10**6, 1, SINGLE),
    "worst": Cell(worst(GDP, 1.0, 1), GDP, 1.0, 10, 1000, COUNT),
    "worst, list": Cell(worst(GDP, 1.5, 5), GDP, 1.5, 50, 200, COUNT, size=5),
    "worst, mahloujifar": Cell(worst(GDP, 1.0, 5), GDP, 1.0, 10, 100, MAHLOUJIFAR, size=5),
    "worst, steinke": Cell(worst(DIRECT, 1.0, 20), DIRECT, 1.0, 100, 300, STEINKE, size=20),
    "worst, single": Cell(worst(GDP, 2.0, 3), GDP, 2.0, 10**6, 1, SINGLE),
    "silent": Cell(silent(response(2.0)), DIRECT, 2.0, 10, 500, MAHLOUJIFAR),
    "silent, gaussian": Cell(silent(gaussian(2.0)), GDP, 2.0, 1000, 1000, MAHLOUJIFAR),
    "revealing": Cell(revealing(1.0, 0.02), REVEALING, 1.0, 10, 5, STEINKE),
    "revealing, mahloujifar": Cell(revealing(1.0, 0.02), REVEALING, 1.0, 10, 50, MAHLOUJIFAR),
}
AUDITS, FEW = 2_000, 200


def refuter(cell: Cell) -> Callable[[Ranks], bool]:
    """Whether ranks refute the truth of a cell; counts of right guesses are judged once."""
    entry, lists = RANK_RULES[cell.rule], Lists(cell.k, cell.size, cell.adjacency)
    curve, judged = curve_of_family(cell.family, cell.truth), {}
    tabulated = curve.tabulated()

    def refutes(ranks: Ranks) -> bool:
        right = int((ranks <= cell.size).sum())
        secrets = GuessedSecrets(ranks, lists, len(ranks), right)
        key = right if entry.uses_lists else ranks.tobytes()
        if key not in judged:
            if cell.rule is MAHLOUJIFAR:
                judged[key] = mahloujifar_refutes(secrets, tabulated, SIGNIFICANCE)
            else:
                judged[key] = entry.p_value(secrets, curve) <= SIGNIFICANCE
        return judged[key]

    return refutes


def share_refuted(cell: Cell, num_audits: int, seed: int) -> float:
    rng, refutes = np.random.default_rng(seed), refuter(cell)
    return float(np.mean([refutes(cell.draw(rng, cell.m, cell.k)) for _ in range(num_audits)]))


@pytest.mark.parametrize("num_audits", [FEW, exhaustive(AUDITS)])
@pytest.mark.parametrize("name", CELLS)
def test_the_truth_is_seldom_refuted(name, num_audits):
    share = share_refuted(CELLS[name], num_audits, seed=[len(name), num_audits])
    assert share <= allowed(num_audits)


def test_these_audits_would_see_a_wrong_bound_and_the_worst_case_attains_its_bound():
    """With nine tenths of the truth in its place, the bounds that are tight fail."""
    for name, truth in (("worst", 0.85), ("worst, list", 1.2), ("response", 1.75)):
        wrong = CELLS[name]._replace(truth=truth)
        assert share_refuted(wrong, FEW, seed=1) > 2 * allowed(FEW), name
    # As often as a count can: near 5 %.
    assert share_refuted(CELLS["worst"], AUDITS, seed=3) > 0.03


@pytest.mark.parametrize("num_audits", [100, exhaustive(AUDITS)])
@pytest.mark.parametrize("rule", [*RankRule])
@pytest.mark.parametrize("k", [2, 10_000])
def test_no_signal_shows_exactly_nothing(rule, k, num_audits):
    rng, m = np.random.default_rng([k, num_audits]), 1 if rule is SINGLE else 200
    refutes = refuter(Cell(gaussian(0.0), DIRECT, 0.0, k, m, rule))
    draws = [rng.integers(1, k + 1, m) for _ in range(num_audits)]
    unrefuted = [ranks for ranks in draws if not refutes(ranks)]
    assert 1 - len(unrefuted) / num_audits <= allowed(num_audits)
    # Unless epsilon 0 is refuted, the bound is 0.
    options = {"num_candidates": k, "delta": DELTA, "rule": rule}
    assert estimate_epsilon_from_ranks(ranks=unrefuted[0], **options).epsilon_lower == 0.0
