"""The calibrated rules keep their significance, and are tight.

The allowance for a rate is 3 Monte-Carlo errors at the significance: .065 at 2,000 audits and .060
at 4,000. The cells of a test have fixed seeds.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from sampling import exhaustive
from scipy.special import ndtr, ndtri
from simulated import (
    DELTA,
    SIGNIFICANCE,
    Draw,
    bounds_by_rule,
    gaussian,
    mapped,
    rules_above,
    transcripts,
)

from dpcanary import estimate_epsilon
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.accounting.trade_off import trade_off_curve
from dpcanary.estimation.calibration.store import null_table
from dpcanary.estimation.families import GDP, direct_family, family_of
from dpcanary.estimation.settings import Conversion
from dpcanary.gdp import gdp_epsilon

RULES = ("combined", "calibrated", "rank_sum")
OFTEN = Mechanism("substitute", sample_rate=0.0625, noise_multiplier=3.0174, num_steps=500)
SELDOM = Mechanism("substitute", sample_rate=0.01, noise_multiplier=0.7, num_steps=500)
ADD_REMOVE = Mechanism("add_remove", sample_rate=0.02, noise_multiplier=0.7, num_steps=100)


@cache
def gaussian_bounds(mu: float) -> dict[str, np.ndarray]:
    return bounds_by_rule(gaussian(mu), (1250, 1250), num_audits=4000, seed=1)


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_gaussian_scores_exceed_the_truth_at_the_significance(mu):
    bounds = gaussian_bounds(mu)
    assert not rules_above(bounds, mu)
    rates = {rule: float((values > mu).mean()) for rule, values in bounds.items()}
    assert min(rates.values()) > SIGNIFICANCE - 0.015, "needlessly weak"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("conversion", ["gdp", "direct"])
def test_the_front_door_gives_these_bounds(rule, conversion):
    """The tests of this file read tables of critical values themselves, to be fast."""
    family = GDP if conversion == "gdp" else direct_family(DELTA)
    sizes = (120, 120)
    for mu in (0.0, 1.0, 3.0):
        draw = mapped(gaussian(mu), lambda scores: np.round(scores, 1))
        [theta] = bounds_by_rule(draw, sizes, num_audits=1, seed=3, family=family)[rule]
        rng = np.random.default_rng([3, *sizes])
        world0, world1 = draw(rng, *sizes)
        found = estimate_epsilon(
            world0_scores=world0,
            world1_scores=world1,
            delta=DELTA,
            threshold_rule=rule,
            conversion=conversion,
        )
        assert found.epsilon_lower == pytest.approx(family.epsilon(theta, DELTA), rel=1e-6)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((8, 8), id="8"),
        pytest.param((20, 20), id="20"),
        pytest.param((125, 125), id="125"),
        pytest.param((1111, 1111), id="1111"),
        pytest.param((3000, 3000), id="3000"),
        pytest.param((1100, 1300), id="1100-1300"),
        pytest.param((80, 70), id="80-70"),
        pytest.param((40, 90), id="40-90, computed"),
    ],
)
@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_other_numbers_of_scores(sizes, mu):
    bounds = bounds_by_rule(gaussian(mu), sizes, num_audits=2000, seed=4)
    assert not rules_above(bounds, mu)


@pytest.mark.parametrize(
    "sizes",
    [
        *(pytest.param((n, n), id=str(n)) for n in (9, 30, 64, 66, 125, 230, 1111)),
        pytest.param((100, 120), id="100-120"),
        pytest.param((400, 480), id="400-480"),
    ],
)
def test_scores_with_few_errors(sizes):
    """Where worlds are nearly separate, the statistics take few values."""
    table = null_table(family=GDP, looks=(sizes,), significance=SIGNIFICANCE)
    shares = [0.55, 0.65, 0.73, 0.8, 0.825, 0.84, 0.86, 0.9, 0.94, 0.97, 0.98, 0.987]
    for mu in np.array(shares) * table.thetas[-1]:
        bounds = bounds_by_rule(gaussian(mu), sizes, num_audits=1000, seed=5)
        assert not rules_above(bounds, mu), mu / table.thetas[-1]


def clipped(rng: np.random.Generator, n0: int, n1: int) -> tuple[np.ndarray, np.ndarray]:
    """N(1, 4) against N(0, 1); clipped, since thresholds far out would have an unbounded mu."""
    return np.clip(rng.normal(1, 2, n0), -3, 3), np.clip(rng.normal(0, 1, n1), -3, 3)


# At each threshold t, the mu of both error rates; the largest is at the end, 3.
CLIPPED_MU = float(-ndtri(ndtr(-3.0)) - ndtri(ndtr((3.0 - 1) / 2)))
# The largest is in the middle, .5.
LAPLACE_MU = float(-2 * ndtri(0.5 * np.exp(-0.5)))

LAWS: dict[str, tuple[Draw, float]] = {
    "rounded": (mapped(gaussian(1.0), np.round), 1.0),
    "binary": (mapped(gaussian(2.0), lambda scores: (scores >= 1).astype(float)), 2.0),
    "binary, far": (mapped(gaussian(2.0), lambda scores: (scores >= 2.5).astype(float)), 2.0),
    "equal": (mapped(gaussian(1.0), np.zeros_like), 0.0),
    "infinite": (mapped(gaussian(1.0), lambda scores: np.where(scores > 1, np.inf, scores)), 1.0),
    "unequal variances": (clipped, CLIPPED_MU),
    "Laplace": (
        lambda rng, n0, n1: (rng.laplace(1.0, 1.0, n0), rng.laplace(0.0, 1.0, n1)),
        LAPLACE_MU,
    ),
}


@pytest.mark.parametrize("law", LAWS)
def test_other_laws(law):
    draw, truth = LAWS[law]
    bounds = bounds_by_rule(draw, (1250, 1250), num_audits=2000, seed=6)
    assert not rules_above(bounds, truth)
    if law == "equal":
        assert not any(values.any() for values in bounds.values())


def response(epsilon: float) -> Draw:
    """Randomised response."""
    lie = 1 / (1 + np.exp(epsilon))
    return lambda rng, n0, n1: (
        (rng.random(n0) >= lie).astype(float),
        (rng.random(n1) < lie).astype(float),
    )


def direct_pair(epsilon: float, delta: float = DELTA) -> Draw:
    """Scores with the least curve of (epsilon, delta)-DP."""

    def draw(rng: np.random.Generator, n0: int, n1: int) -> tuple[np.ndarray, np.ndarray]:
        fpr = rng.random(n1)
        steep, flat = (1 - delta - np.exp(epsilon) * fpr), np.exp(-epsilon) * (1 - delta - fpr)
        return rng.random(n0), np.maximum(steep, flat)

    return draw


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        pytest.param(response(1.0), 1.0, id="response-1"),
        pytest.param(response(2.5), 2.5, id="response-2.5"),
        pytest.param(direct_pair(1.0), 1.0, id="pair-1"),
        pytest.param(direct_pair(2.5), 2.5, id="pair-2.5"),
        pytest.param(gaussian(1.0), gdp_epsilon(mu=1.0, delta=DELTA), id="gaussian"),
    ],
)
def test_direct(draw, truth):
    bounds = bounds_by_rule(draw, (120, 120), num_audits=2000, seed=7, family=direct_family(DELTA))
    assert not rules_above(bounds, truth)


def test_direct_at_a_large_delta():
    """Where the curve's FNR is 0, a score of world 1 is below all others, and not missing."""
    family = direct_family(0.01)
    assert np.isfinite(family.curves(np.array([0.0, 1.0, 5.0]))).all()
    draw = direct_pair(1.0, delta=0.01)
    bounds = bounds_by_rule(draw, (120, 120), num_audits=2000, seed=10, family=family)
    assert not rules_above(bounds, 1.0)


@pytest.mark.long
@pytest.mark.parametrize(
    "mechanism", [exhaustive(OFTEN), SELDOM, ADD_REMOVE], ids=["often", "seldom", "add_remove"]
)
def test_subsampled_gaussian_on_the_worst_case(mechanism):
    """The truth is the accountant's; the scores are simulated step by step."""
    family = family_of(Conversion.SUBSAMPLED_GAUSSIAN, delta=DELTA, mechanism=mechanism)
    truth = trade_off_curve(mechanism).epsilon(DELTA)
    thetas = bounds_by_rule(
        transcripts(mechanism), (80, 80), num_audits=2000, seed=8, family=family
    )
    bounds = {
        rule: np.array([family.epsilon(theta, DELTA) for theta in values])
        for rule, values in thetas.items()
    }
    assert not rules_above(bounds, truth)
    rates = {rule: float((values > truth).mean()) for rule, values in bounds.items()}
    assert min(rates.values()) > SIGNIFICANCE - 0.02, "needlessly weak"


@pytest.mark.parametrize(("mu", "tightness"), [(1.0, 0.915), (2.0, 0.95)])
def test_the_default_is_tight(mu, tightness):
    """The mean of mu_lower / mu; .92 and .956 were measured."""
    assert gaussian_bounds(mu)["combined"].mean() / mu >= tightness


def test_the_default_is_tight_on_binary_scores():
    """As tight as the rule that looks at the best threshold alone, within 3 %."""
    draw = mapped(gaussian(1.0), lambda scores: (scores >= 0.5).astype(float))
    bounds = bounds_by_rule(draw, (1250, 1250), num_audits=1000, seed=9)
    assert bounds["combined"].mean() >= 0.97 * bounds["calibrated"].mean()


def test_critical_values_that_are_too_small_by_a_hundredth_are_noticed():
    table = null_table(family=GDP, looks=((1250, 1250),), significance=SIGNIFICANCE)
    critical = {rule: values / np.float32(1.01) for rule, values in table.critical.items()}
    shifted = replace(table, critical=critical)
    assert not rules_above(gaussian_bounds(2.0), 2.0)
    bounds = bounds_by_rule(gaussian(2.0), (1250, 1250), num_audits=4000, seed=1, table=shifted)
    assert set(rules_above(bounds, 2.0)) == set(RULES)
