"""The numbers in the text on what one training proves are those of the table beside it."""

import pandas as pd
import pytest
from published import Page, number, table_of

from dpcanary import expected_bound
from dpcanary.accounting import gdp_epsilon

TEXT = Page("one_run.md").text
TABLE = table_of("one-run-digits").set_index(["num_runs", "num_slots", "threshold_rule"])


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


CIFAR = {
    name: table_of(f"one-run-cifar10-{name}").set_index(["num_slots", "threshold_rule", "num_runs"])
    for name in ("head", "mlp", "convnet")
}


def bound(value: float) -> str:
    return number(value) if value else "0"


def cell(row: "pd.Series[float]") -> str:
    error = "" if pd.isna(row["error_bar"]) else f" ± {bound(row['error_bar'])}"
    return f"{bound(row['epsilon'])}{error}"


@pytest.mark.parametrize(
    ("name", "words", "slots", "models"),
    [
        ("head", "linear head", 500, (500, 1000)),
        ("mlp", "perceptron", 500, (500,)),
        ("convnet", "ConvNet", 200, (300,)),
    ],
)
def test_the_table_of_cifar10(name, words, slots, models):
    table = CIFAR[name]
    alone = "; ".join(f"{count:,}: {cell(table.loc[(1, 'combined', count)])}" for count in models)
    one = [cell(table.loc[(slots, rule, 1)]) for rule in ("mahloujifar", "combined")]
    assert f"| {words} | {' | '.join(one)} | {alone} |" in TEXT


def test_one_training_of_a_head_on_cifar10():
    table, membership = CIFAR["head"], gdp_epsilon(mu=1.0, delta=1e-5)
    any_dependence = table.loc[(500, "mahloujifar", 1)]
    assert any_dependence["epsilon"] - any_dependence["error_bar"] > membership
    assert any_dependence["num_repeats"] == 20
    ratio = table.loc[(500, "combined", 1), "epsilon"] / table.loc[(1, "combined", 500), "epsilon"]
    assert ratio >= 0.9
    assert f"it proves {number(ratio)} of what 500 trainings" in TEXT
    for models in (500, 1000):
        perfect = expected_bound(mechanism=2.0, num_runs=models, delta=1e-5)
        assert f"would prove {perfect.mean:.2f}" in TEXT or f"proves {perfect.mean:.2f}" in TEXT


def test_the_price_of_canaries():
    table = table_of("one-run-cifar10-presence")
    accuracies = []
    for slots, rows in table.groupby("num_slots"):
        bounds = rows.set_index("threshold_rule")["epsilon"]
        cells = [
            bound(bounds[rule]) if rule in bounds else "-" for rule in ("mahloujifar", "combined")
        ]
        accuracies.append(rows["test_accuracy"].iloc[0])
        assert f"| {slots:,} | {' | '.join(cells)} | {100 * accuracies[-1]:.1f} % |" in TEXT
    assert accuracies == sorted(accuracies, reverse=True)
