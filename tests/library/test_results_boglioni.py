"""The numbers in the text on canary sets are those of the tables beside it."""

import pandas as pd
import pytest
from published import DOCS, Page, number

from dpcanary.estimation import epsilon_of_guesses
from dpcanary.estimation.one_run.slots import Guesses
from dpcanary.training.residual_networks import resnet9

TEXT = Page("results/boglioni.md").text
SETS = {"random": "random_record", "mislabeled": "loss", "optimised": "metagradient"}


def row(
    figure: str, canary: str, other: str = "", *, measure: str = "mahloujifar", step: int = 200
):
    """A row of a figure's table."""
    path = DOCS / f"results/boglioni-{figure}.tsv"
    table = pd.read_csv(path, sep="\t", keep_default_na=False, dtype={"compared_with": str})
    numbers = ["mean", "lower", "upper", "median"]
    table[numbers] = table[numbers].astype(float)
    place = table.set_index(["measure", "step", "canary", "compared_with"])
    return place.loc[(measure, step, SETS[canary], SETS.get(other, ""))]


def interval(found) -> str:
    return f"{number(found['mean'])} ({number(found['lower'])} to {number(found['upper'])})"


@pytest.mark.parametrize("canary", SETS)
def test_the_table_of_bounds(canary):
    cells = [interval(row(figure, canary)) for figure in ("figure2", "figure2_convnet")]
    assert f"| {canary} | {' | '.join(cells)} |" in TEXT


def test_differences_between_trainings_with_the_same_seed():
    for figure in ("figure2", "figure2_convnet"):
        for other in ("random", "mislabeled"):
            found = row(figure, "optimised", other)
            assert interval(found) in TEXT
            assert found["lower"] > 0  # better, beyond chance
            steinke = row(figure, "optimised", other, measure="steinke")
            assert steinke["lower"] > 0
    half_way = row("figure2", "optimised", "mislabeled", step=100)
    assert f"optimised ones by {number(half_way['mean'])}" in TEXT
    assert f"({number(half_way['lower'])} to {number(half_way['upper'])})" in TEXT
    assert half_way["lower"] < 0 < half_way["upper"]
    assert interval(row("figure2", "mislabeled", "random", step=100)) in TEXT


def test_loss_gaps():
    gaps = [number(row("figure2", canary, measure="loss_gap")["mean"]) for canary in SETS]
    words = "by {} nats for random, {} for mislabeled and {} for optimised ones in the ResNet-9"
    assert words.format(*gaps) in TEXT


def test_the_descent_from_mislabeled_canaries():
    own = row("figure2_mislabeled", "optimised")
    assert interval(own) in TEXT
    better = row("figure2_mislabeled", "optimised", "mislabeled")
    assert interval(better) in TEXT
    assert better["lower"] > 0
    gap = row("figure2_mislabeled", "mislabeled", "optimised", measure="loss_gap")
    assert interval(gap) in TEXT
    assert gap["lower"] > 0


def test_what_50_right_guesses_prove():
    most = epsilon_of_guesses(Guesses(200, 50, 50), delta=1e-5, conversion="gdp").epsilon_lower
    assert f"the bound is {most:.2f}, and no bound can be higher" in TEXT


def test_with_privacy_nothing_is_proven():
    found = [row("table2", canary, step=100) for canary in SETS]
    means = [number(one["mean"]) for one in found]
    assert "the means are {}, {} and {} by `mahloujifar`".format(*means) in TEXT
    assert all(one["median"] == 0 for one in found)
    for canary in SETS:
        for other in SETS:
            for measure in ("mahloujifar", "steinke"):
                if canary != other:
                    paired = row("table2", canary, other, measure=measure, step=100)
                    assert paired["lower"] < 0 < paired["upper"]


@pytest.mark.parametrize("canary", SETS)
def test_the_table_of_finetuning(canary):
    cells = []
    for measure in ("mahloujifar", "steinke"):
        found = row("table2b", canary, measure=measure, step=100)
        cells.append((interval(found), number(found["median"])))
    (one, median), (other, other_median) = cells
    assert f"| {canary} | {one} | {median} | ." in TEXT
    assert f"| {other} | {other_median} | ." in TEXT


def test_differences_in_finetuning():
    better = row("table2b", "optimised", "random", step=100)
    assert interval(better) in TEXT
    assert better["lower"] > 0
    alike = row("table2b", "optimised", "mislabeled", step=100)
    assert interval(alike) in TEXT
    assert alike["lower"] < 0 < alike["upper"]


def test_the_size_of_the_network():
    size = sum(parameter.numel() for parameter in resnet9(width=4).parameters())
    assert f"width 4 ({size:,} parameters)" in TEXT
