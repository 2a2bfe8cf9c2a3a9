"""What the texts on results claim of their tables, beyond single numbers."""

import re

import numpy as np
import pandas as pd
import pytest
import yaml
from published import DOCS, table_of
from scipy.stats import binom

from benchmarks.published import KEPT, PAGE, row
from dpcanary.accounting import gdp_epsilon
from dpcanary.adversaries.landscape_law import curves_of, exact_law
from dpcanary.adversaries.loss_landscape import Process, two_levels
from dpcanary.adversaries.settings import LandscapeShape
from dpcanary.installation import published_names

MEMBERSHIP = gdp_epsilon(mu=1.0, delta=1e-5)  # half of the mu of a substitute epsilon of 10
PAPERS = yaml.safe_load((KEPT / "papers.yaml").read_text())


def audited(figure: str, canary: str = "", **settings: object) -> "pd.Series[float]":
    """Bounds of the valid rule at the last of these steps."""
    rows = table_of(f"cebere-{figure}").query("series == 'audited'")
    for key, value in (settings | ({"canary": canary} if canary else {})).items():
        rows = rows[rows[key] == value]
    return rows[rows["step"] == rows["step"].max()]["epsilon"]


def paired(figure: str, canary: str, other: str, **at: object) -> "pd.Series[float]":
    """The difference of two sets of canaries in trainings with the same seed."""
    rows = table_of(f"boglioni-{figure}")
    for key, value in ({"canary": canary, "compared_with": other} | at).items():
        rows = rows[rows[key] == value]
    assert len(rows) == 1
    return rows.iloc[0]


LAST = {"measure": "mahloujifar", "step": 200}
TUNED = {"measure": "mahloujifar", "step": 100}


@pytest.mark.parametrize(
    ("figure", "canary", "other", "at"),
    [
        (figure, "metagradient", other, {**LAST, "measure": measure})
        for figure in ("figure2", "figure2_convnet")
        for other in ("random_record", "loss")
        for measure in ("mahloujifar", "steinke")
    ]
    + [
        ("figure2", "loss", "random_record", TUNED),
        ("figure2_mislabeled", "metagradient", "loss", LAST),
        ("figure2_mislabeled", "loss", "metagradient", {**LAST, "measure": "loss_gap"}),
        ("table2b", "metagradient", "random_record", TUNED),
    ],
)
def test_sets_of_canaries_that_are_called_better_are_so_beyond_chance(figure, canary, other, at):
    assert paired(figure, canary, other, **at)["lower"] > 0


def test_sets_of_canaries_that_are_not_called_better_are_not_so_beyond_chance():
    names = ("random_record", "loss", "metagradient")
    cases = [("figure2", "metagradient", "loss", "mahloujifar")]
    cases += [("table2b", "metagradient", "loss", "mahloujifar")]
    cases += [
        ("table2", canary, other, measure)
        for canary in names
        for other in names
        for measure in ("mahloujifar", "steinke")
        if canary != other
    ]
    for figure, canary, other, measure in cases:
        difference = paired(figure, canary, other, measure=measure, step=100)
        assert difference["lower"] < 0 < difference["upper"], (figure, canary, other, measure)
    medians = table_of("boglioni-table2").query("measure == 'mahloujifar' and step == 100")
    assert (medians[medians["compared_with"].isna()]["median"] == 0).all()


def test_simulated_coordinates_are_the_best_on_housing():
    shown = {"learning_rate": 0.1}
    of = {
        canary: audited("housing-figure1c", canary, **shown).item()
        for canary in ("simulated_dimension", "random_dimension", "loss")
    }
    assert of["simulated_dimension"] > of["random_dimension"] + 2
    assert of["simulated_dimension"] > 1.5 * of["loss"]
    rankings = [
        audited("housing-figure4", "simulated_dimension", ranking=ranking, **shown)
        for ranking in ("per_step", "final_model")
    ]
    assert rankings[0].min() > rankings[1].max()
    table = table_of("cebere-housing-substitute")
    membership = table.query("series == 'accounted_add_remove'").set_index("step")["epsilon"]
    gradients = table.query("series == 'audited' and canary != 'loss'")
    assert (gradients["epsilon"] > gradients["step"].map(membership)).all()
    last = gradients[gradients["step"] == 250].set_index("canary")["epsilon"]
    assert (last.idxmin(), last.idxmax()) == ("random_direction", "simulated_dimension")


def test_one_gradient_canary_in_each_convnet_is_nearly_tight_and_periods_cost():
    simulated = [
        audited("convnet-figure2", "simulated_dimension", canary_period=k).item()
        for k in (1, 5, 25)
    ]
    assert simulated[0] > 2 * simulated[1] > 4 * simulated[2]
    table = table_of("cebere-convnet-figure1a")
    accounted = table.query("series == 'accounted_add_remove'")["epsilon"].max()
    assert 0.93 * accounted < audited("convnet-figure1a", "simulated_dimension").item() <= accounted
    random = audited("convnet-figure2", "random_dimension", canary_period=1).item()
    assert audited("convnet-figure1a", "loss").item() < random
    runs = table.query("series == 'audited' and step == 250")["num_runs"]
    assert set(runs) == {1000}
    assert set(table_of("cebere-convnet-figure8")["mean"].round(1)) == {1.3}


def landscape(figure: str, series: str) -> "pd.Series[float]":
    """Epsilons by noise multiplier, batch size, step, and the conversion of audited ones."""
    rows = table_of(f"cebere-{figure}").query("series == @series")
    keys = ["noise_multiplier", "batch_size", "step"]
    return rows.set_index([*keys, "conversion"] if series == "audited" else keys)["epsilon"]


def test_bounds_of_the_crafted_landscape_are_below_what_limits_them():
    pushed = landscape("figure3a", "exact_gdp")[1, 16, 25]
    assert pushed == pytest.approx(landscape("figure3a", "accounted")[1, 16, 25], abs=1e-3)
    limit = landscape("figure14", "exact_gdp")
    gdp = landscape("figure14", "audited").xs("gdp", level="conversion")
    assert len(gdp) == len(limit) == 1000
    assert not (gdp > limit).any()
    assert not (gdp > landscape("figure14", "accounted")).any()
    by = table_of("cebere-figure3b").query("batch_size == 16")
    assert set(by["epsilon_hidden_state_gdp"].round(2)) == {1.0}
    assert set(by["epsilon_hidden_state"].round(2)) == {0.95}


def test_the_best_threshold_is_another_one_than_that_of_the_conversion():
    rows = table_of("cebere-figure6").query("noise_multiplier == 1")
    by = rows.set_index("landscape_threshold")
    exact = by.query("series == 'exact'")["epsilon"]
    assert exact.idxmax() == 4.5
    assert exact[:4.5].is_monotonic_increasing
    assert by.query("series == 'exact_gdp'")["epsilon"].idxmax() == 0.5
    for conversion in ("gdp", "direct"):
        bounds = by.loc[by["conversion"] == conversion, "epsilon"]
        assert bounds[4.5] < bounds[0.5]


def test_the_search_for_landscapes():
    table = table_of("cebere-landscape-search")
    assert (table["wide"] - table["of_best_threshold"]).max() < 0.003
    large = table[table["batch_size"] >= 4]
    assert (large["of_best_threshold"] / large["accounted"] > 0.98).all()
    two = table[table["num_steps"] == 2]
    formula = 0.5 + two["noise_multiplier"] ** 2 * two["of_best_threshold"]
    np.testing.assert_allclose(two["best_threshold"], formula, atol=0.06)
    for line in table.itertuples():
        best = two_levels(threshold=line.best_threshold, shape=LandscapeShape.DIVERGING)
        noises = line.noise_multiplier, line.noise_multiplier / line.batch_size
        law = exact_law(Process(best, (1.0, 0.0), *noises), (line.num_steps,))
        assert curves_of(law)[0].epsilon(1e-5) == pytest.approx(line.of_best_threshold, abs=1e-3)


@pytest.mark.parametrize("page", ["cebere-landscape.md", "cebere.md", "boglioni.md", "README.md"])
def test_every_picture_of_a_page_of_results_has_its_table(page):
    folder = DOCS / "results"
    names = re.findall(r"\]\(([\w-]+)\.png\)", (folder / page).read_text())
    assert len(names) > 3
    for name in names:
        assert (folder / f"{name}.png").exists()
        assert (folder / f"{name}.tsv").exists()


def test_one_training_proves_more_than_the_epsilon_that_libraries_report():
    keys = ["num_slots", "threshold_rule", "num_runs"]
    for name, repeats in (("digits", None), ("cifar10-head", 20)):
        table = table_of(f"one-run-{name}").set_index(keys)
        proven = table.loc[(500, "mahloujifar", 1)]
        assert proven["epsilon"] - proven["error_bar"] > MEMBERSHIP
        assert repeats in (None, proven["num_repeats"])
        many = table.loc[(1, "combined", 1000 if repeats is None else 500), "epsilon"]
        assert table.loc[(500, "combined", 1), "epsilon"] > 0.9 * many
    presence = table_of("one-run-cifar10-presence").groupby("num_slots")["test_accuracy"].first()
    assert presence.is_monotonic_decreasing


def test_the_encoding_loss_proves_less_than_is_accounted_and_more_than_a_linear_loss():
    rows = table_of("hidden-state").query("adjacency != 'zero_out'")
    for (adjacency, sigma), cell in rows.groupby(["adjacency", "noise_multiplier"]):
        accounted = cell.set_index("series")["epsilon"][f"accounted_{adjacency}"]
        by_score = cell.set_index("score")["epsilon"]
        assert by_score["decoded"] < accounted
        if sigma <= 1:
            assert by_score["decoded"] > by_score["final_sum"]


def test_settings_with_a_ratio_below_two_sample_rarely_with_little_noise():
    rows = table_of("figureA5")
    few = rows[rows["ratio"] < 2]
    assert len(rows) == 108
    assert few["sample_rate"].max() < 1
    assert few["noise_multiplier"].max() <= 3


def test_every_published_audit_is_on_the_page_and_compared_with_its_paper():
    assert {f"published/{name}" for name in PAPERS} == {*published_names()}
    for name, said in PAPERS.items():
        assert f"dpcanary run published/{name}" in PAGE.read_text()
        assert any("theirs" in line and "differs" in line for line in said)


def test_few_valid_bounds_are_above_the_accounted_epsilon():
    """Each exceeds it with a probability of 5 % at most, and by little."""
    tables = [pd.read_csv(KEPT / f"{name}.tsv", sep="\t") for name in PAPERS]
    bounds = pd.concat(tables)
    # What is accounted for Poisson samples does not hold for shuffled batches.
    valid = bounds[bounds["is_valid"] & ~bounds["audit"].str.startswith("shuffled")]
    above = valid[valid["epsilon"] > valid["accounted"]]
    assert len(above) <= binom(len(valid), 0.05).isf(1e-3)
    assert (above["epsilon"] / above["accounted"]).max() < 1.01


@pytest.mark.parametrize(
    ("name", "figure", "audit", "values"),
    [
        (
            *("shuffling", "published-shuffling"),
            "shuffled-adjacencyzero_out-other_recordsopposite-sigma1.1",
            {"series": "shuffled_opposite", "adjacency": "zero_out", "noise_multiplier": 1.1},
        ),
        (
            *("hidden-state", "hidden-state", "encoding-adjacencysubstitute-sigma0.8"),
            {"canary": "encoding_loss", "adjacency": "substitute", "noise_multiplier": 0.8},
        ),
        (
            *("last-iterate", "last-iterate", "gradients-adjacencyadd_remove"),
            {"adjacency": "add_remove", "step": 400},
        ),
    ],
)
def test_bounds_of_published_audits_are_those_of_the_figures(name, figure, audit, values):
    drawn = table_of(figure)
    for column, value in {"series": "audited", **values}.items():
        drawn = drawn[drawn[column] == value]
    kept = pd.read_csv(KEPT / f"{name}.tsv", sep="\t")
    [epsilon] = kept[kept["audit"] == audit]["epsilon"]
    assert epsilon == pytest.approx(drawn["epsilon"].item(), rel=1e-9)


def test_a_row_has_the_numbers_of_one_valid_bound_and_an_absent_audit_is_named():
    columns = ["threshold_rule", "conversion", "is_valid", "epsilon"]
    rules = [
        ("in_sample", "gdp", False, 9.125),
        ("combined", "gdp", True, 7.5),
        ("combined", "subsampled_gaussian", True, 8.25),
    ]
    bounds = pd.DataFrame(rules, columns=columns).assign(
        audit="x", num_runs=2000, accounted=10.0, minutes=0.5
    )
    said = {"audit": "x", "models": 2000, "of": "some", "theirs": "9", "differs": "data"}
    assert row("name", said, bounds) == (
        *("`name`: some", "2,000", "10.00", "9.12", "**8.25**", "9", "< 1", "data"),
    )
    without = bounds[bounds["conversion"] == "gdp"].assign(minutes=1.6)
    assert row("name", said, without)[4:7] == ("**7.50**", "9", "2")
    with pytest.raises(ValueError, match="name: 0 valid bounds of audit x with 2 models"):
        row("name", said | {"models": 2}, bounds)
