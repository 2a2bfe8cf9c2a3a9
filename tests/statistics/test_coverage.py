"""Rules of error rates that claim to be valid keep their significance; `in_sample` does not.

test_calibrated_coverage.py is about the calibrated rules.

Scores are Gaussian with known mu, so the truth is mu itself for conversion `gdp` and its epsilon
for `direct`. With B simulated audits and exceedance rate p, the Monte-Carlo error is
sqrt(p (1 - p) / B); the allowance is 3 of them at p = significance: a rate of at most .065 at 2,000
audits, and .079 at 500.
"""

import numpy as np
import pandas as pd
import pytest
from simulated import DELTA, SIGNIFICANCE, allowed, estimates_of, gaussian, mapped

from dpcanary.estimation.rules import ThresholdRule
from dpcanary.estimation.settings import Conversion, EstimationStage, Independence
from dpcanary.estimation.table import estimates_table
from dpcanary.gdp import gdp_epsilon
from dpcanary.scoring.score_file import AuditScores
from dpcanary.training.settings import WorldAssignment
from dpcanary.training.slots import assigned_worlds

NUM_AUDITS = 2000
CONVERSIONS = (Conversion.GDP, Conversion.DIRECT)
ALLOWED = allowed(NUM_AUDITS)


def exceedance(*, mu: float, runs_per_world: int, num_audits: int, seed: int, **rule) -> float:
    """Share of simulated audits whose bound exceeds the truth."""
    truth = gdp_epsilon(mu=mu, delta=DELTA)
    rng = np.random.default_rng([seed, runs_per_world, int(10 * mu)])
    sizes = (runs_per_world, runs_per_world)
    estimates = estimates_of(gaussian(mu), sizes, rng, num_audits=num_audits, **rule)
    return sum(found.epsilon_lower > truth + 1e-9 for found in estimates) / num_audits


@pytest.mark.parametrize("conversion", ["gdp", "direct"])
@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("rule", ["simultaneous", "split", "fixed"])
def test_valid_rules_keep_their_significance(rule, mu, conversion):
    threshold = {"threshold": mu / 2} if rule == "fixed" else {}
    rate = exceedance(
        mu=mu,
        runs_per_world=1250,
        num_audits=NUM_AUDITS,
        seed=1,
        threshold_rule=rule,
        conversion=conversion,
        **threshold,
    )
    assert rate <= ALLOWED


@pytest.mark.parametrize("mu", [0.0, 1.0, 4.0])
def test_simultaneous_keeps_its_significance_at_many_runs(mu):
    rate = exceedance(
        mu=mu, runs_per_world=25_000, num_audits=500, seed=2, threshold_rule="simultaneous"
    )
    assert rate <= ALLOWED


def test_in_sample_does_not():
    num_audits = 300
    rate = exceedance(
        mu=1.0, runs_per_world=25_000, num_audits=num_audits, seed=3, threshold_rule="in_sample"
    )
    error = np.sqrt(rate * (1 - rate) / num_audits)
    assert rate - 3 * error > SIGNIFICANCE


def test_split_keeps_its_significance_on_sorted_scores():
    """Runs may come in any order; cutting sorted scores in the middle would be badly wrong."""
    rng = np.random.default_rng(4)
    draw = mapped(gaussian(1.0), np.sort)
    estimates = estimates_of(draw, (1250, 1250), rng, num_audits=NUM_AUDITS, threshold_rule="split")
    assert sum(found.mu_lower > 1.0 for found in estimates) / NUM_AUDITS <= ALLOWED


@pytest.mark.parametrize(("mu", "tightness"), [(1.0, 0.80), (2.0, 0.88)])
def test_simultaneous_is_tight(mu, tightness):
    """mu_lower / mu averages .81 at mu 1 and .89 at mu 2 for a band of this kind."""
    rng = np.random.default_rng(5)
    estimates = estimates_of(
        gaussian(mu), (1250, 1250), rng, num_audits=200, threshold_rule="simultaneous"
    )
    assert np.mean([found.mu_lower for found in estimates]) / mu > tightness


def estimates_of_slots(
    *,
    mu: float,
    shape: tuple[int, int, int],
    seed: int,
    worlds: WorldAssignment = WorldAssignment.COINS,
    independent: Independence = Independence.SLOTS,
    shared_noise: bool = False,
) -> pd.DataFrame:
    """Bounds of simulated audits of several slots, with the `truth` that they must not exceed.

    A Gaussian mechanism releases a sum with standard normal noise in every direction; a slot's
    record moves the sum by mu between the worlds, in a direction of the slot's own. A slot's score
    is the release in that direction.
    With shared noise, the noise is the same in all directions of a run: a slot's scores are still
    those of a Gaussian mechanism, but slots are not independent. The shape is that of audits, runs
    and slots.
    """
    num_audits, num_runs, num_slots = shape
    runs = np.arange(num_audits * num_runs)
    assigned = assigned_worlds(worlds, runs=runs, num_slots=num_slots, seed=seed).reshape(shape)
    rng = np.random.default_rng([seed, num_runs, int(10 * mu)])
    noise = rng.standard_normal((num_audits, num_runs, 1 if shared_noise else num_slots))
    audits = AuditScores(
        header={"audit": "simulated", "noise_multiplier": 1.0, "seconds": 0.0},
        step=np.array([1]),
        scores=(mu * (0.5 - assigned) + noise)[..., None],
        world=assigned.astype(np.uint8),
        test_accuracy=np.full(shape[:2], np.nan, np.float32),
    )
    stage = EstimationStage(
        delta=DELTA,
        significance=SIGNIFICANCE,
        threshold_rules=(ThresholdRule.SIMULTANEOUS, ThresholdRule.SPLIT),
        conversions=CONVERSIONS,
        independent=independent,
    )
    return estimates_table(stage, audits).assign(truth=gdp_epsilon(mu=mu, delta=DELTA))


def exceedances(table: pd.DataFrame) -> "pd.Series[float]":
    """Share of audits whose bound exceeds the truth, by threshold rule and conversion."""
    above = table["epsilon_lower"] > table["truth"] + 1e-9
    return above.groupby([table["threshold_rule"], table["conversion"]]).mean()


@pytest.mark.parametrize("worlds", [WorldAssignment.COINS, WorldAssignment.HALVES])
@pytest.mark.parametrize("mu", [0.0, 1.0, 4.0])
def test_pooled_slots_that_are_independent_keep_the_significance(mu, worlds):
    """About 1,250 scores per world, as in the tests of one slot.

    With 2,000 audits the Monte-Carlo error of a rate is at most .005 below the significance.
    """
    table = estimates_of_slots(mu=mu, shape=(NUM_AUDITS, 625, 4), worlds=worlds, seed=6)
    rates = exceedances(table)
    assert (len(rates), len(table)) == (4, 4 * NUM_AUDITS)
    assert (rates <= ALLOWED).all(), rates


@pytest.mark.parametrize(("mu", "tightness"), [(1.0, 0.80), (2.0, 0.88)])
def test_pooling_slots_is_as_tight_as_more_runs(mu, tightness):
    table = estimates_of_slots(mu=mu, shape=(200, 625, 4), seed=7)
    by_rule = table[table["conversion"] == Conversion.GDP].groupby("threshold_rule")["mu_lower"]
    assert by_rule.mean()[ThresholdRule.SIMULTANEOUS] / mu > tightness


@pytest.mark.parametrize("independent", Independence)
def test_slots_that_share_their_noise_may_not_be_pooled(independent):
    """Pooled, the bounds break; slot by slot, they hold.

    With 500 audits the Monte-Carlo error of a rate is at most .01 below the significance, and .022
    anywhere.
    """
    table = estimates_of_slots(
        mu=1.0, shape=(500, 50, 10), independent=independent, shared_noise=True, seed=8
    )
    if independent is Independence.RUNS:
        rates = exceedances(table[table["slot"] == 0])
        assert (rates <= allowed(500)).all(), rates
    else:
        rates = exceedances(table)[:, Conversion.GDP]
        errors = np.sqrt(rates * (1 - rates) / 500)
        assert (rates - 3 * errors > SIGNIFICANCE).all(), rates
