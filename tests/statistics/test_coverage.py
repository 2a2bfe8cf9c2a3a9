"""Every rule of the catalogue keeps its significance on every law, or says that it does not.

With B simulated audits and a rate p of bounds above the truth, the Monte-Carlo error is
sqrt(p (1 - p) / B); the allowance is 3 of them at p = significance: a rate of at most 0.088 at 300
audits, 0.065 at 2,000 and 0.060 at 4,000. Seeds are fixed. Most runs of the tests simulate few
audits of few runs, which finds errors of a factor; the exhaustive ones find errors of a hundredth.
"""

from functools import cache, partial

import numpy as np
import pytest
import simulated
from sampling import exhaustive
from simulated import DELTA, LAWS, SIGNIFICANCE, Law, allowed, direct_pair, estimates_of, gaussian

from dpcanary.accounting.exact_trade_off import trade_off_curve
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.estimation import estimate_epsilon_at_looks
from dpcanary.estimation.estimation_settings import Conversion, EstimationStage, Independence
from dpcanary.estimation.families import GDP, direct_family
from dpcanary.estimation.null_distributions.null_tables import calibrated_bound, null_table
from dpcanary.estimation.null_distributions.statistics import (
    curve_of,
    observed_statistics,
    scan_terms,
)
from dpcanary.estimation.rule_catalogue import RULES, ThresholdRule
from dpcanary.estimation.table import estimates_table
from dpcanary.scoring.score_file import AuditScores
from dpcanary.training.slots import assigned_worlds
from dpcanary.training.training_settings import WorldAssignment

VALID = [rule for rule, entry in RULES.items() if entry.is_valid]
CALIBRATED = [rule for rule, entry in RULES.items() if entry.is_calibrated]
OFTEN = Mechanism("substitute", sample_rate=0.0625, noise_multiplier=3.0174, num_steps=500)
SELDOM = Mechanism("substitute", sample_rate=0.01, noise_multiplier=0.7, num_steps=500)
ADD_REMOVE = Mechanism("add_remove", sample_rate=0.02, noise_multiplier=0.7, num_steps=100)


# Scores of a world, and audits; both fewer for rule `anytime`, which takes long.
FEW, MANY = ((128, 300), (60, 40)), ((1250, 2_000), (200, 500))


@pytest.mark.parametrize("sizes", [FEW, exhaustive((MANY,))], ids=["few", "many"])
@pytest.mark.parametrize("rule", VALID)
def test_valid_rules_keep_their_significance(rule, sizes):
    size, num_audits = sizes[RULES[rule].anytime]
    rates = {
        name: simulated.share_above(rule, law, size, num_audits)
        for name, law in LAWS.items()
        if not (law.is_sorted and RULES[rule].anytime)  # which is refused
    }
    assert max(rates.values()) <= allowed(num_audits), rates
    assert rates["equal"] == 0
    if RULES[rule].is_calibrated:
        assert rates["gaussian 1.0"] > 0.02, "needlessly weak"


def test_rules_that_are_not_valid_do_not():
    for rule in {*RULES} - {*VALID}:
        rate = simulated.share_above(rule, LAWS["gaussian 1.0"], 25_000, 200)
        assert rate - 3 * np.sqrt(rate * (1 - rate) / 200) > SIGNIFICANCE


# By the delta of the curve.
DIRECT_LAWS = {
    DELTA: {
        **{
            f"response {epsilon}": Law(simulated.response(epsilon), epsilon)
            for epsilon in (1.0, 2.5)
        },
        **{f"pair {epsilon}": Law(direct_pair(epsilon), epsilon) for epsilon in (1.0, 2.5)},
        "gaussian": Law(gaussian(1.0), gdp_epsilon(mu=1.0, delta=DELTA)),
    },
    0.1: {"pair 0": Law(direct_pair(0.0, 0.1), 0.0)},
    0.02: {"pair 1": Law(direct_pair(1.0, 0.02), 1.0)},
}


@pytest.mark.parametrize(("num_audits", "size"), [(300, 40), exhaustive((2_000, 120))])
@pytest.mark.parametrize("delta", DIRECT_LAWS)
@pytest.mark.parametrize("rule", VALID)
def test_conversion_direct_keeps_the_significance(rule, delta, num_audits, size):
    family = direct_family(delta)
    assert np.isfinite(family.curves(np.array([0.0, 1.0, 5.0]))).all()
    if RULES[rule].anytime:
        num_audits //= 6
    for name, law in DIRECT_LAWS[delta].items():
        if rule == ThresholdRule.FIXED and name == "gaussian":
            continue  # half of its epsilon is no good threshold
        rate = simulated.share_above(rule, law, size, num_audits, family=family, seed=7)
        assert rate <= allowed(num_audits), name


@pytest.mark.long
@pytest.mark.parametrize(
    "mechanism", [exhaustive(OFTEN), SELDOM, ADD_REMOVE], ids=["often", "seldom", "add_remove"]
)
def test_subsampled_gaussian_on_the_worst_case(mechanism):
    """The truth is the accountant's; the scores are simulated step by step."""
    truth, draw = trade_off_curve(mechanism).epsilon(DELTA), simulated.transcripts(mechanism)
    options = {"conversion": Conversion.SUBSAMPLED_GAUSSIAN, "mechanism": mechanism}
    options |= {"num_audits": 1000}
    for rule in CALIBRATED:
        rng = np.random.default_rng(8)
        bounds = estimates_of(draw, (80, 80), rng, threshold_rule=rule, **options)
        rate = np.mean([bound.epsilon_lower > truth for bound in bounds])
        assert SIGNIFICANCE - 0.02 < rate <= allowed(1000)


@pytest.mark.parametrize("num_audits", [50, exhaustive(600)])
def test_bets_against_a_true_curve_seldom_win_and_against_too_low_a_one_often(num_audits):
    """The last case fails if a wealth that is a little too large would not be noticed."""
    mechanism = Mechanism("add_remove", sample_rate=0.1, num_steps=12, noise_multiplier=0.6)
    for draw, curve in (
        (simulated.drifting, curve_of(1.0)),
        (simulated.transcripts(mechanism), curve_of(mechanism)),
    ):
        refuted = sum(simulated.is_refuted(curve, draw, 200, audit) for audit in range(num_audits))
        assert refuted / num_audits <= allowed(num_audits)
    refuted = sum(
        simulated.is_refuted(curve_of(1.6), gaussian(2.0), 200, k) for k in range(num_audits)
    )
    assert refuted / num_audits > 2 * SIGNIFICANCE


@pytest.mark.long
def test_anytime_bounds_are_nearly_those_of_a_fixed_number():
    rng = np.random.default_rng(8)
    options = {"num_audits": 40, "threshold_rule": "anytime"}
    for mu, least in ((1.0, 0.72), (3.0, 0.87)):
        bounds = estimates_of(gaussian(mu), (500, 500), rng, **options)
        assert least * mu < np.mean([bound.mu_lower for bound in bounds]) < mu


FOUR = ((50, 50), (100, 100), (200, 200), (400, 400))


@pytest.mark.parametrize(
    ("looks", "num_audits"),
    [(((12, 12), (24, 24)), 300), exhaustive((FOUR, 3_000))],
    ids=["two", "four"],
)
@pytest.mark.parametrize("rule", CALIBRATED)
def test_bounds_at_looks_hold_jointly(rule, looks, num_audits):
    rng, above = np.random.default_rng(1), 0
    for _ in range(num_audits):
        world0, world1 = gaussian(1.0)(rng, *looks[-1])
        scores = {"world0_scores": world0, "world1_scores": world1, "delta": DELTA}
        bounds = estimate_epsilon_at_looks(**scores, looks=looks, threshold_rule=rule)
        above += max(bound.mu_lower for bound in bounds) > 1.0
    assert above / num_audits <= allowed(num_audits)
    assert above / num_audits >= 0.02, "needlessly weak"


SIZES = [(8, 8), (125, 125), (1111, 1111), (3000, 3000), (1100, 1300), (80, 70), (40, 90)]


def rates_above(mu: float, sizes: tuple[int, int], num_audits: int) -> dict[str, float]:
    terms = scan_terms(family=GDP, sizes=sizes, significance=SIGNIFICANCE)
    rng = np.random.default_rng([4, *sizes])
    known = {"family": GDP, "looks": (sizes,), "significance": SIGNIFICANCE, "look": 0}
    above = dict.fromkeys(CALIBRATED, 0)
    for _ in range(num_audits):
        statistics = observed_statistics(*gaussian(mu)(rng, *sizes), terms)
        for rule in above:
            above[rule] += calibrated_bound(rule=rule, statistics=statistics, **known) > mu + 1e-9
    return {rule: count / num_audits for rule, count in above.items()}


@pytest.mark.parametrize(
    ("sizes", "num_audits"),
    [((8, 8), 300), ((1100, 1300), 300), *(exhaustive((sizes, 2_000)) for sizes in SIZES)],
)
@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_other_numbers_of_scores(sizes, num_audits, mu):
    rates = rates_above(mu, sizes, num_audits)
    assert max(rates.values()) <= allowed(num_audits), rates


FEW_ERRORS = [(64, 64), (9, 9), (30, 30), (66, 66), (230, 230), (100, 120), (400, 480)]


@pytest.mark.parametrize(
    ("sizes", "num_audits"),
    [((64, 64), 200), ((9, 9), 200), *(exhaustive((sizes, 1_000)) for sizes in FEW_ERRORS)],
)
def test_scores_with_few_errors(sizes, num_audits):
    """Where worlds are nearly separate, the statistics take few values."""
    table = null_table(family=GDP, looks=(sizes,), significance=SIGNIFICANCE)
    for share in (0.55, 0.65, 0.73, 0.8, 0.825, 0.84, 0.86, 0.9, 0.94, 0.97, 0.98, 0.987):
        rates = rates_above(share * table.thetas[-1], sizes, num_audits)
        assert max(rates.values()) <= allowed(num_audits), (share, rates)


@pytest.mark.parametrize("worlds", [WorldAssignment.COINS, WorldAssignment.HALVES])
@pytest.mark.parametrize(
    ("mu", "shape"),
    [(1.0, (100, 100, 4)), *(exhaustive((mu, (2_000, 625, 4))) for mu in (0.0, 1.0, 4.0))],
)
def test_pooled_slots_that_are_independent_keep_the_significance(mu, shape, worlds):
    """Of a Gaussian mechanism that moves a sum by mu in directions of the slots' own.

    The shape is that of audits, runs and slots.
    """
    num_audits, num_runs, num_slots = shape
    runs = np.arange(num_audits * num_runs)
    assigned = assigned_worlds(worlds, runs=runs, num_slots=num_slots, seed=6).reshape(shape)
    noise = np.random.default_rng([6, num_runs, int(10 * mu)]).standard_normal(shape)
    audits = AuditScores(
        header={"audit": "simulated", "noise_multiplier": 1.0, "seconds": 0.0},
        step=np.array([1]),
        scores=(mu * (0.5 - assigned) + noise)[..., None],
        world=assigned.astype(np.uint8),
        test_accuracy=np.full(shape[:2], np.nan, np.float32),
    )
    rules = (ThresholdRule.SIMULTANEOUS, ThresholdRule.SPLIT)
    known = {"delta": DELTA, "significance": SIGNIFICANCE, "independent": Independence.SLOTS}
    both = (Conversion.GDP, Conversion.DIRECT)
    stage = EstimationStage(threshold_rules=rules, conversions=both, **known)
    table = estimates_table(stage, audits)
    above = table["epsilon_lower"] > gdp_epsilon(mu=mu, delta=DELTA) + 1e-9
    rates = above.groupby([table["threshold_rule"], table["conversion"]]).mean()
    assert (len(rates), len(table)) == (4, 4 * num_audits)
    assert (rates <= allowed(num_audits)).all(), rates


@cache
def mean_bound(rule: str, draw: simulated.Draw, num_audits: int) -> float:
    rng = np.random.default_rng(5)
    bounds = estimates_of(draw, (1250, 1250), rng, num_audits=num_audits, threshold_rule=rule)
    return float(np.mean([bound.mu_lower for bound in bounds]))


@pytest.mark.parametrize("num_audits", [100, exhaustive(1_000)])
def test_rules_are_tight(num_audits):
    """The mean of mu_lower / mu. Its deviation is 0.04, so that its error is 0.004."""
    mean = partial(mean_bound, num_audits=num_audits)
    for rule, mu, least in (
        ("combined", 1.0, 0.905), ("combined", 2.0, 0.945),
        ("simultaneous", 1.0, 0.79), ("simultaneous", 2.0, 0.875),
    ):  # fmt: skip
        assert mean(rule, gaussian(mu)) > least * mu, (rule, mu)
    # As tight as the rule that looks at the best threshold alone, within 3 %.
    binary = simulated.mapped(gaussian(1.0), lambda scores: (scores >= 0.5) * 1.0)
    assert mean("combined", binary) >= 0.97 * mean("calibrated", binary)
