"""The numbers in the text on what one training proves are those of the table beside it."""

from pathlib import Path

import pandas as pd
import pytest

from dpcanary import gdp_epsilon

DOCS = Path(__file__).parents[2] / "docs"
TEXT = " ".join((DOCS / "one_run.md").read_text().split())
TABLE = pd.read_csv(DOCS / "results" / "one-run-digits.tsv", sep="\t").set_index(
    ["num_runs", "num_slots", "threshold_rule"]
)


@pytest.mark.parametrize(
    ("models", "slots", "rule", "words"),
    [
        (1, 500, "steinke", "`steinke`, any dependence between slots"),
        (1, 500, "mahloujifar", "`mahloujifar`, any dependence"),
        (1, 500, "order_statistic", "`order_statistic`, independent slots"),
        (1, 500, "combined", "`combined`, independent slots"),
        (1000, 1, "combined", "`combined`"),
    ],
)
def test_the_table(models, slots, rule, words):
    epsilon = TABLE.loc[(models, slots, rule), "epsilon"]
    assert f"| {models:,} | {slots} | {words} | {epsilon:.1f} |" in TEXT


def test_one_training_proves_more_than_the_epsilon_that_libraries_report():
    membership = gdp_epsilon(mu=1.0, delta=1e-5)  # half of the mu of a substitute epsilon of 10
    assert f"would report {membership:.2f}" in TEXT
    row = TABLE.loc[(1, 500, "mahloujifar")]
    assert row["epsilon"] - row["error_bar"] > membership
    alone = TABLE.loc[(1000, 1, "combined"), "epsilon"]
    assert TABLE.loc[(1, 500, "combined"), "epsilon"] > 0.9 * alone
