"""Simulated audits: scores whose truth is known, and the bounds of the calibrated rules."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary import estimate_epsilon
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.adjacency import Adjacency
from dpcanary.estimation import EpsilonEstimate
from dpcanary.estimation.calibration.statistics import NullTable, observed_statistics, scan_terms
from dpcanary.estimation.calibration.store import calibrated_bound
from dpcanary.estimation.families import GDP, Family
from dpcanary.estimation.rules import RULES

SIGNIFICANCE = 0.05
DELTA = 1e-5

Scores = NDArray[np.float64]
Sizes = tuple[int, int]
Draw = Callable[[np.random.Generator, int, int], tuple[Scores, Scores]]


def allowed(num_audits: int) -> float:
    """The significance and 3 Monte-Carlo errors."""
    return SIGNIFICANCE + 3 * float(np.sqrt(SIGNIFICANCE * (1 - SIGNIFICANCE) / num_audits))


def gaussian(mu: float) -> Draw:
    """Scores whose trade-off curve is G_mu."""
    return lambda rng, n0, n1: (rng.normal(mu, 1.0, n0), rng.normal(0.0, 1.0, n1))


def estimates_of(
    draw: Draw, sizes: Sizes, rng: np.random.Generator, *, num_audits: int, **options: Any
) -> list[EpsilonEstimate]:
    """The estimates of many audits, with the options of `estimate_epsilon`."""
    estimates = []
    for _ in range(num_audits):
        world0, world1 = draw(rng, *sizes)
        estimates.append(
            estimate_epsilon(
                world0_scores=world0,
                world1_scores=world1,
                delta=DELTA,
                significance=SIGNIFICANCE,
                **options,
            )
        )
    return estimates


def mapped(draw: Draw, change: Callable[[Scores], Scores]) -> Draw:
    """Scores after a change that does not fall, so that no threshold becomes better."""

    def changed(rng: np.random.Generator, n0: int, n1: int) -> tuple[Scores, Scores]:
        first, second = draw(rng, n0, n1)
        return change(first), change(second)

    return changed


def transcripts(mechanism: Mechanism) -> Draw:
    """Log-likelihood ratios of all noisy sums, for the worst-case pair of `mechanism`.

    Each step samples the record or not. It adds 1 in world 0; in world 1 it adds -1 under
    `substitute` and is not there under `add_remove`. Every step is drawn; no accountant is used.
    """
    q, sigma, steps = mechanism.sample_rate, mechanism.noise_multiplier, mechanism.num_steps
    in_world1 = -1 if mechanism.adjacency is Adjacency.SUBSTITUTE else 0
    places = np.linspace(-1 - 9 * sigma, 1 + 9 * sigma, 20_001)
    # The density of each world, over that of the noise alone.
    first, second = (
        np.logaddexp(np.log1p(-q), np.log(q) + (sign * places - abs(sign) / 2) / sigma**2)
        for sign in (1, in_world1)
    )
    losses = (first - second).astype(np.float32)
    per_unit = 1 / (places[1] - places[0])

    def sums(rng: np.random.Generator, count: int, added: int) -> Scores:
        sampled = rng.random((count, steps), np.float32) < q
        noise = np.float32(sigma) * rng.standard_normal((count, steps), np.float32)
        noisy = np.float32(added) * sampled + noise
        # The table is finer than any difference that an audit could see.
        cells = np.rint((noisy - np.float32(places[0])) * np.float32(per_unit)).astype(np.int32)
        return losses[np.clip(cells, 0, len(losses) - 1)].sum(axis=1, dtype=np.float64)

    return lambda rng, n0, n1: (sums(rng, n0, 1), sums(rng, n1, in_world1))


def bounds_by_rule(
    draw: Draw,
    sizes: Sizes,
    *,
    num_audits: int,
    seed: int,
    family: Family = GDP,
    table: NullTable | None = None,
) -> dict[str, Scores]:
    """The theta that each calibrated rule proves in each of many audits.

    `table` is the null table, if it is not the right one.
    """
    terms = scan_terms(family=family, sizes=sizes, significance=SIGNIFICANCE)
    rng = np.random.default_rng([seed, *sizes])
    found: dict[str, list[float]] = {
        rule: [] for rule, entry in RULES.items() if entry.is_calibrated
    }
    right = {"family": family, "looks": (sizes,), "significance": SIGNIFICANCE}
    for _ in range(num_audits):
        case = {"look": 0, "statistics": observed_statistics(*draw(rng, *sizes), terms)}
        for rule, bounds in found.items():
            bound = table.bound if table else partial(calibrated_bound, **right)
            bounds.append(bound(rule=rule, **case))
    return {rule: np.array(bounds) for rule, bounds in found.items()}


def rules_above(bounds: dict[str, Scores], truth: float) -> dict[str, float]:
    """The rules that exceed the truth more often than the significance allows, with their rates."""
    rates = {rule: float((values > truth + 1e-9).mean()) for rule, values in bounds.items()}
    return {rule: rate for rule, rate in rates.items() if rate > allowed(len(bounds[rule]))}
