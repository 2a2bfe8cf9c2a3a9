"""How many runs a target needs, by the scores of a few runs that were made already."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import trapezoid
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import norm, rankdata

from dpcanary.core.argument_checks import checked_real
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.estimation.error_rates import checked_significance, checked_worlds
from dpcanary.estimation.power import TooManyRunsError, runs_needed

_INTERVAL, _RESAMPLES = (0.05, 0.95), 2_000


@dataclass(frozen=True)
class PilotedRuns:
    """What a pilot suggests: for a weaker attack, one as strong as the pilot's, and a stronger one.

    Attributes:
        mu: of the Gaussian curve with the attack's AUC: the ends of a 90 % bootstrap interval, and
            the estimate between them. Of scores that do not overlap, the first is the mu of which
            5 % of such pilots do not, and the last is no limit.
        epsilon: at delta, of these mu: what so strong an attack shows with many runs.
        runs: of both worlds together, with which the bound exceeds the target with the given
            power; None if no number of runs is enough.
        overlaps: whether a score of world 1 is as high as one of world 0.
    """

    mu: tuple[float, ...]
    epsilon: tuple[float, ...]
    runs: tuple[int | None, ...]
    overlaps: bool


def runs_after_pilot(
    *,
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    exceed: float,
    delta: float,
    power: float = 0.8,
    significance: float = 0.05,
) -> PilotedRuns:
    """How many new runs show that epsilon exceeds a target, if they are like those of a pilot.

    The pilot's AUC gives mu of a Gaussian trade-off curve, as for runs of DP-SGD that are scored by
    a likelihood ratio, and `runs_needed` the runs at this mu.

    The pilot's scores must not be among those of the bound: they chose the number of runs.

    Args:
        world0_scores: shape (n0,), of the pilot. Higher means world 0 is likelier.
        world1_scores: shape (n1,).
        exceed: the epsilon to be exceeded.
        delta: in (0, 1).
        power: probability that the bound is above `exceed`.
        significance: of the bound.

    Raises:
        InputError: if a score is NaN or an argument is out of range.
    """
    scores = checked_worlds(world0_scores, world1_scores)
    exceed, power = checked_real("exceed", exceed), checked_real("power", power, most=1.0)
    significance = checked_significance(significance)
    rng, mu = np.random.default_rng(0), _mu(*scores)
    resampled = [
        _mu(*(rng.choice(world_scores, len(world_scores)) for world_scores in scores))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(resampled, _INTERVAL).tolist()
    overlaps = bool(scores[0].min() <= scores[1].max())
    if not overlaps:  # nor do those of a bootstrap
        low = max(0.0, _seldom_apart(*map(len, scores)))
    strengths = min(low, mu), mu, max(high, mu)
    epsilons = tuple(gdp_epsilon(mu=strength, delta=delta) for strength in strengths)

    def runs(strength: float, epsilon: float) -> int | None:
        if epsilon <= exceed:
            return None
        try:
            return runs_needed(
                mechanism=strength,
                exceed=exceed,
                delta=delta,
                power=power,
                significance=significance,
            )
        except TooManyRunsError:  # the epsilon is too near to the target
            return None

    needed = tuple(runs(*pair) for pair in zip(strengths, epsilons, strict=True))
    return PilotedRuns(strengths, epsilons, needed, overlaps)


def _seldom_apart(n0: int, n1: int) -> float:
    """The mu at which all scores of world 0 exceed those of world 1 with a probability of 5 %."""
    largest1 = np.linspace(-10.0, 10.0, 20_001)
    density = n1 * norm.pdf(largest1) * ndtr(largest1) ** (n1 - 1)

    def probability(mu: float) -> float:
        return float(trapezoid(density * ndtr(mu - largest1) ** n0, largest1))

    return float(brentq(lambda mu: probability(mu) - _INTERVAL[0], -10.0, 20.0))


def _mu(world0: NDArray[np.float64], world1: NDArray[np.float64]) -> float:
    """The mu of the Gaussian curve with the scores' AUC, at least 0.

    Separate worlds count half a pair as an error: their AUC of 1 has no finite mu.
    """
    n0, n1 = len(world0), len(world1)
    ranks = rankdata(np.concatenate([world0, world1]))[:n0]
    auc = (ranks.sum() - n0 * (n0 + 1) / 2) / (n0 * n1)
    return max(0.0, sqrt(2) * float(ndtri(min(auc, 1 - 0.5 / (n0 * n1)))))
