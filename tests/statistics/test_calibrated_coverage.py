"""The calibrated rules keep their significance at all numbers of scores, also with few errors."""

import numpy as np
import pytest
from sampling import exhaustive
from simulated import SIGNIFICANCE, allowed, gaussian

from dpcanary.estimation.calibration.statistics import observed_statistics, scan_terms
from dpcanary.estimation.calibration.store import calibrated_bound, null_table
from dpcanary.estimation.families import GDP
from dpcanary.estimation.rules import RULES

CALIBRATED = [rule for rule, entry in RULES.items() if entry.is_calibrated]
SIZES = [(8, 8), (125, 125), (1111, 1111), (3000, 3000), (1100, 1300), (80, 70), (40, 90)]


def rates_above(mu: float, sizes: tuple[int, int], num_audits: int) -> dict[str, float]:
    """By rule, the share of audits whose bound exceeds the truth, mu."""
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
