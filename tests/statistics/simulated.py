"""Simulated audits: laws of scores whose truth is known, and how often bounds exceed it."""

from collections.abc import Callable
from functools import cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpcanary import Adjacency, Mechanism, estimate_epsilon
from dpcanary.estimation import Conversion, EpsilonEstimate, OneRunEstimate, epsilon_of_guesses
from dpcanary.estimation.anytime import EProcess, lines_of_curves
from dpcanary.estimation.families import GDP, Family
from dpcanary.estimation.one_run.slot_guesses import Guesses, guess_slots
from dpcanary.estimation.rule_catalogue import RULES, ThresholdRule

SIGNIFICANCE = 0.05
DELTA = 1e-5

Scores = NDArray[np.float64]
# From a generator and the numbers of scores of world 0 and world 1.
Draw = Callable[[np.random.Generator, int, int], tuple[Scores, Scores]]


def allowed(num_audits: int) -> float:
    """The significance and 3 Monte-Carlo errors of so many audits."""
    return SIGNIFICANCE + 3 * sqrt(SIGNIFICANCE * (1 - SIGNIFICANCE) / num_audits)


def gaussian(mu: float, deviation: float = 1.0) -> Draw:
    return lambda rng, n0, n1: (rng.normal(mu, deviation, n0), rng.normal(0.0, 1.0, n1))


def mapped(draw: Draw, change: Callable[[Scores], Scores]) -> Draw:
    """Scores after a change that does not fall, so that no threshold becomes better."""

    def changed(*arguments: Any) -> tuple[Scores, Scores]:
        first, second = draw(*arguments)
        return change(first), change(second)

    return changed


def response(epsilon: float) -> Draw:
    """Randomised response: a score is its world's name, or a lie."""
    lie = 1 / (1 + np.exp(epsilon))
    return lambda rng, n0, n1: (1.0 * (rng.random(n0) >= lie), 1.0 * (rng.random(n1) < lie))


def direct_pair(epsilon: float, delta: float = DELTA) -> Draw:
    """Scores whose trade-off curve is that of (epsilon, delta)-DP exactly.

    Where the curve is 0, a score of world 1 is below all others, and not missing.
    """

    def draw(rng: np.random.Generator, n0: int, n1: int) -> tuple[Scores, Scores]:
        fpr = rng.random(n1)
        steep, flat = (1 - delta - np.exp(epsilon) * fpr), np.exp(-epsilon) * (1 - delta - fpr)
        return rng.random(n0), np.maximum(0.0, np.maximum(steep, flat))

    return draw


def transcripts(mechanism: Mechanism) -> Draw:
    """Log-likelihood ratios of all noisy sums, for the worst-case pair of `mechanism`.

    Each step samples the record or not. It adds 1 in world 0; in world 1 it adds -1 under
    `substitute` and is not there under `add_remove`. Every step is drawn; no accountant is used.
    """
    q, sigma, steps = mechanism.sample_rate, mechanism.noise_multiplier, mechanism.num_steps
    in_world1 = -1 if mechanism.adjacency is Adjacency.SUBSTITUTE else 0

    def over_noise(noisy: Scores, added: int) -> Scores:
        """The logarithm of a world's density, over that of the noise alone."""
        return np.logaddexp(np.log1p(-q), np.log(q) + added * (noisy - added / 2) / sigma**2)

    def sums(rng: np.random.Generator, count: int, added: int) -> Scores:
        sampled = rng.random((count, steps)) < q
        noisy = added * sampled + sigma * rng.standard_normal((count, steps))
        return (over_noise(noisy, 1) - over_noise(noisy, in_world1)).sum(axis=1)

    return lambda rng, n0, n1: (sums(rng, n0, 1), sums(rng, n1, in_world1))


class Law(NamedTuple):
    """A law of scores, and the least theta of the conversion's curves that it satisfies."""

    draw: Draw
    truth: float


def laplace(rng: np.random.Generator, n0: int, n1: int) -> tuple[Scores, Scores]:
    return rng.laplace(1.0, 1.0, n0), rng.laplace(0.0, 1.0, n1)


# The least mu of mu-GDP. Of the clipped law it is at the end, 3; of Laplace's in the middle, 0.5.
# Without clipping, thresholds far out would have an unbounded mu.
CLIPPED_MU = float(-ndtri(ndtr(-3.0)) - ndtri(ndtr((3.0 - 1) / 2)))
LAPLACE_MU = float(-2 * ndtri(0.5 * np.exp(-0.5)))
LAWS: dict[str, Law] = {
    **{f"gaussian {mu}": Law(gaussian(mu), mu) for mu in (0.0, 0.5, 1.0, 2.0, 4.0)},
    "rounded": Law(mapped(gaussian(1.0), np.round), 1.0),
    "binary": Law(mapped(gaussian(2.0), lambda scores: (scores >= 1) * 1.0), 2.0),
    "binary, far": Law(mapped(gaussian(2.0), lambda scores: (scores >= 2.5) * 1.0), 2.0),
    "equal": Law(mapped(gaussian(1.0), np.zeros_like), 0.0),
    "infinite": Law(mapped(gaussian(1.0), lambda scores: np.where(scores > 1, np.inf, scores)), 1),
    "unequal": Law(mapped(gaussian(1.0, 2.0), lambda scores: np.clip(scores, -3, 3)), CLIPPED_MU),
    "Laplace": Law(laplace, LAPLACE_MU),
    "sorted": Law(mapped(gaussian(1.0), np.sort), 1.0),
}


def estimates_of(
    draw: Draw, sizes: tuple[int, int], num_audits: int, seed: int, **options: Any
) -> list[EpsilonEstimate]:
    options = {"delta": DELTA, "significance": SIGNIFICANCE, **options}
    rng = np.random.default_rng([seed, sizes[0]])
    audits = (draw(rng, *sizes) for _ in range(num_audits))
    return [estimate_epsilon(world0_scores=x, world1_scores=y, **options) for x, y in audits]


@cache
def bound_of_guesses(guesses: Guesses, **options: Any) -> OneRunEstimate:
    return epsilon_of_guesses(guesses, **{"delta": DELTA, "significance": SIGNIFICANCE, **options})


def is_refuted(curve: np.ndarray, draw: Draw, num_pairs: int, seed: int) -> bool:
    """Whether the bets of rule `anytime` against a curve win enough at any number of pairs."""
    process = EProcess(lines_of_curves(np.zeros(1), curve[None]))
    process.add(*draw(np.random.default_rng([7, seed]), num_pairs, num_pairs))
    return bool(process.largest[0] >= 1 / SIGNIFICANCE)


def share_above(
    rule: str, law: Law, per_world: int, num_audits: int, *, family: Family = GDP, seed: int = 1
) -> float:
    """Share of audits whose bound exceeds the truth of their law."""
    entry = RULES[rule]
    if entry.anytime:  # the bound exceeds the truth if the true curve is refuted
        [curve] = family.curves(np.array([law.truth]))
        pairs = min(per_world, 200)
        return float(np.mean([is_refuted(curve, law.draw, pairs, k) for k in range(num_audits)]))
    truth = family.epsilon(law.truth, family.delta or DELTA) + 1e-9
    conversion = entry.conversion(Conversion.GDP if family is GDP else Conversion.DIRECT)
    options = {"conversion": conversion, "delta": family.delta or DELTA}
    if entry.guesses:
        bounds, rng = [], np.random.default_rng([seed, per_world])
        # Worlds are coins, so their sizes differ.
        for num_world0 in rng.binomial(2 * per_world, 0.5, num_audits):
            scores = law.draw(rng, num_world0, 2 * per_world - num_world0)
            guesses = guess_slots(*scores, positive_guesses=20, negative_guesses=25)
            bounds.append(bound_of_guesses(guesses, method=rule, **options))
    else:
        options |= {"threshold": law.truth / 2} if rule == ThresholdRule.FIXED else {}
        sizes = (per_world, per_world)
        bounds = estimates_of(law.draw, sizes, num_audits, seed, threshold_rule=rule, **options)
    return float(np.mean([bound.epsilon_lower > truth for bound in bounds]))
