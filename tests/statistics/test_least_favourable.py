"""The argument behind the calibrated rules, draw by draw (docs/validity.md)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling import exhaustive

from dpcanary.estimation.calibration.statistics import observed_statistics, scan_terms
from dpcanary.estimation.families import GDP, direct_family

Array = NDArray[np.float64]
SIZES = (60, 70)
TERMS = [
    scan_terms(family=family, sizes=SIZES, significance=0.05)
    for family in (GDP, direct_family(1e-5))
]


@dataclass(frozen=True)
class Coupled:
    """Scores of a mechanism, and those of the least favourable pair from the same draws."""

    world0: Array
    world1: Array
    pair0: Array  # u: the probability, under world 0, of a score below one's own, random in ties
    pair1: Array  # f(v), for v the probability, under world 1, of a score above one's own


def of_atoms(scores: Array, law0: Array, law1: Array, rng: np.random.Generator) -> Coupled:
    """A mechanism with finitely many outcomes, each of which has a score."""
    i, j = rng.choice(len(scores), SIZES[0], p=law0), rng.choice(len(scores), SIZES[1], p=law1)
    below = np.array([law0[scores < score].sum() for score in scores])
    above = np.array([law1[scores > score].sum() for score in scores])
    equal0, equal1 = (np.array([law[scores == s].sum() for s in scores]) for law in (law0, law1))
    u = below[i] + rng.random(SIZES[0]) * equal0[i]
    v = above[j] + rng.random(SIZES[1]) * equal1[j]
    return Coupled(scores[i], scores[j], u, best_curve(law0, law1)(v))


def best_curve(law0: Array, law1: Array) -> Callable[[Array], Array]:
    """The trade-off curve of two laws of atoms, by likelihood-ratio tests (Neyman, Pearson)."""
    with np.errstate(divide="ignore"):
        order = np.argsort(-(law0 / law1), kind="stable")
    fpr = np.concatenate([[0.0], np.cumsum(law1[order])])
    fnr = 1 - np.concatenate([[0.0], np.cumsum(law0[order])])
    return lambda v: np.interp(v, fpr, np.maximum(fnr, 0.0))


def random_atoms(seed: int) -> Coupled:
    """Outcomes of random probabilities; scores in random order and with ties."""
    rng = np.random.default_rng([1, seed])
    size = int(rng.integers(2, 12))
    law0, law1 = (rng.dirichlet(np.full(size, 0.7)) for _ in range(2))
    scores = rng.integers(0, size, size).astype(float)
    return of_atoms(scores, law0, law1, rng)


def likelihood_ratios(seed: int) -> Coupled:
    """The same with the best scores, for which the argument is tight."""
    rng = np.random.default_rng([2, seed])
    law0, law1 = (rng.dirichlet(np.full(6, 0.7)) for _ in range(2))
    return of_atoms(law0 / law1, law0, law1, rng)


@pytest.mark.parametrize("num_draws", [60, exhaustive(400)])
@pytest.mark.parametrize("mechanism", [random_atoms, likelihood_ratios])
def test_the_pair_wins_all_that_the_mechanism_wins(mechanism, num_draws):
    """Every comparison of two scores, so that no statistic of the mechanism is larger."""
    won, won_by_pair, lost_by_a_lower_one = 0, 0, 0
    for seed in range(num_draws):
        coupled = mechanism(seed)
        wins = coupled.world0[:, None] > coupled.world1
        pair_wins = coupled.pair0[:, None] >= coupled.pair1 - 1e-12
        assert not (wins & ~pair_wins).any()
        won, won_by_pair = won + wins.sum(), won_by_pair + pair_wins.sum()
        lower_wins = coupled.pair0[:, None] >= coupled.pair1 + 0.02
        lost_by_a_lower_one += (wins & ~lower_wins).sum()
        for terms in TERMS:
            own = observed_statistics(coupled.world0, coupled.world1, terms)
            of_pair = observed_statistics(coupled.pair0, coupled.pair1 - 1e-12, terms)
            assert (own <= of_pair).all()
    assert 0 < won < won_by_pair
    assert lost_by_a_lower_one > 0, "the check is able to fail"


def test_the_coupled_draws_of_the_pair_are_uniform():
    """So the pair is one of independent scores with the curve f, whatever the mechanism."""
    u = np.concatenate([random_atoms(seed).pair0 for seed in range(400)])
    distance = np.abs(np.sort(u) - (np.arange(len(u)) + 0.5) / len(u)).max()
    assert distance < 1.63 / np.sqrt(len(u))  # Kolmogorov and Smirnov, 1 %
