"""The calibrated rules keep their significance at all numbers of scores, also with few errors."""

from dataclasses import replace

import numpy as np
import pytest
from sampling import exhaustive
from simulated import SIGNIFICANCE, allowed, gaussian

from dpcanary.estimation.calibration.statistics import NullTable, observed_statistics, scan_terms
from dpcanary.estimation.calibration.store import calibrated_bound, null_table
from dpcanary.estimation.families import GDP
from dpcanary.estimation.rules import RULES

CALIBRATED = [rule for rule, entry in RULES.items() if entry.is_calibrated]
SIZES = [(8, 8), (125, 125), (1111, 1111), (3000, 3000), (1100, 1300), (80, 70), (40, 90)]


def rates_above(
    mu: float, sizes: tuple[int, int], num_audits: int, table: NullTable | None = None
) -> dict[str, float]:
    """By rule, the share of audits whose bound exceeds the truth, mu.

    `table` is the null table, if it is not the right one.
    """
    terms = scan_terms(family=GDP, sizes=sizes, significance=SIGNIFICANCE)
    rng = np.random.default_rng([4, *sizes])
    right = {"family": GDP, "looks": (sizes,), "significance": SIGNIFICANCE}
    above = dict.fromkeys(CALIBRATED, 0)
    for _ in range(num_audits):
        statistics = observed_statistics(*gaussian(mu)(rng, *sizes), terms)
        for rule in above:
            case = {"rule": rule, "look": 0, "statistics": statistics}
            bound = table.bound(**case) if table else calibrated_bound(**right, **case)
            above[rule] += bound > mu + 1e-9
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


@pytest.mark.exhaustive
def test_critical_values_that_are_too_small_by_a_hundredth_are_noticed():
    table = null_table(family=GDP, looks=((1250, 1250),), significance=SIGNIFICANCE)
    critical = {rule: values / np.float32(1.01) for rule, values in table.critical.items()}
    right = rates_above(2.0, (1250, 1250), 4_000, table)
    shifted = rates_above(2.0, (1250, 1250), 4_000, replace(table, critical=critical))
    assert max(right.values()) <= allowed(4_000) < min(shifted.values())
    assert min(right.values()) > SIGNIFICANCE - 0.015, "needlessly weak"
