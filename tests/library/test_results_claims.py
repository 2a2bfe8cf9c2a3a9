"""What the texts on results claim of their tables, beyond single numbers."""

import re
from itertools import product

import numpy as np
import pandas as pd
import pytest
import yaml
from published import table_of
from scipy.stats import binom

from benchmarks.page_numbers import value_of
from benchmarks.published import KEPT, row
from dpcanary.accounting import gdp_epsilon
from dpcanary.adversaries.adversary_settings import LandscapeShape
from dpcanary.core.installation import published_names
from dpcanary.papers.cebere.landscape_law import curves_of, exact_law
from dpcanary.papers.cebere.loss_landscape import Process, two_levels

PAPERS = yaml.safe_load((KEPT / "papers.yaml").read_text())
# Rising numbers, or words of `benchmarks.page_numbers` for them. A letter stands for a table and
# some words, and a number before a star multiplies.
TABLES = {
    "B": "boglioni-figure2: step=200",
    "C": "boglioni-figure2_convnet: step=200",
    "M": "boglioni-figure2_mislabeled: step=200",
    "T": "boglioni-table2b: step=100 measure=mahloujifar canary=metagradient",
    "H": "cebere-housing-figure1c: audited last learning_rate=0.1",
    "R": "cebere-housing-figure4: audited last learning_rate=0.1 canary=simulated_dimension",
    "S": "cebere-housing-substitute: audited last",
    "N": "cebere-convnet-figure2: audited last",
    "A": "cebere-convnet-figure1a: last",
    "O": "one-run-digits: num_slots=500 num_runs=1",
    "I": "one-run-cifar10-head: num_slots=500 num_runs=1",
    "F3": "figure3: last audited",
    "F4": "figure4: last audited",
}
CLAIMS = [
    # Sets of canaries that are called better are so beyond chance, and others are not.
    *(
        f"0 < {figure} canary=metagradient compared_with={other} measure={measure} .lower"
        for figure in "BC"
        for other in ("random_record", "loss")
        for measure in ("mahloujifar", "steinke")
    ),
    "0 < B canary=loss compared_with=random_record measure=mahloujifar step=100 .lower",
    "0 < M canary=metagradient compared_with=loss measure=mahloujifar .lower",
    "0 < M canary=loss compared_with=metagradient measure=loss_gap .lower",
    "0 < T compared_with=random_record .lower",
    "T compared_with=loss .lower < 0 < T compared_with=loss .upper",
    "B step=100 canary=metagradient compared_with=loss measure=mahloujifar .lower < 0",
    "boglioni-table2: measure=mahloujifar step=100 compared_with= .median @max < 1e-12",
    # On Housing, the coordinate that moves least is best, and ranking per step is.
    "H random_dimension < H simulated_dimension",
    "1.5 * H canary=loss < H simulated_dimension",
    "R ranking=final_model @max < R ranking=per_step @min",
    "S canary=loss < S random_direction < S random_dimension < S simulated_dimension",
    # On the ConvNet, periods cost, and one gradient canary in each model is nearly tight.
    "2 * N simulated_dimension canary_period=5 < N simulated_dimension canary_period=1",
    "2 * N simulated_dimension canary_period=25 < N simulated_dimension canary_period=5",
    "0.93 * A accounted_add_remove < A audited simulated_dimension < A accounted_add_remove",
    "A audited canary=loss < N random_dimension canary_period=1",
    # One training shows more than the epsilon that libraries report, and nearly as much as many.
    *(f"{gdp_epsilon(mu=1.0, delta=1e-5)} < {table} mahloujifar" for table in "OI"),
    "0.9 * O combined num_slots=1 num_runs=1000 < O combined",
    "0.9 * I combined num_slots=1 num_runs=500 < I combined",
    # Ratios of epsilons below 2 are found with rare sampling and little noise alone.
    "figureA5: ratio<2 .sample_rate @max < 0.999",
    "figureA5: ratio<2 .noise_multiplier @max < 3.001",
    # Crafted and mislabeled inputs show less where samples are smaller.
    *(
        f"F3 {canary} sample_rate=0.0625 < F3 {canary} sample_rate=0.25 < F3 {canary} sample_rate=1"
        for canary in ("crafted_input", "mislabeled")
    ),
    "F4 crafted_input sample_rate=0.25 < F4 crafted_input sample_rate=1",
]


def number(side: str) -> float:
    """A side of a claim."""
    factor, star, words = side.rpartition(" * ")
    if re.fullmatch(r"[-\d.e]+", words):
        return float(words)
    first, *rest = words.split()
    table, *inherited = TABLES.get(first, first).split()
    return (float(factor) if star else 1.0) * value_of(rest, [table.rstrip(":"), *inherited])


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_is_called_larger_is_larger(claim):
    numbers = [number(side) for side in claim.split(" < ")]
    assert (np.diff(numbers) > 0).all(), numbers


INPUTS = ("crafted_input", "mislabeled", "natural")
RATES = (1, 0.25, 0.0625)


@pytest.mark.parametrize(("name", "num_runs", "not_above"), [
    ("figure2", 50_000, set()),
    ("figure3", 2500, set()),
    ("figure4", 1000, {("mislabeled", 1), ("mislabeled", 0.25)}),
    ("figure5", 250, set()),
    ("figure5", 100, {*product(["natural"], RATES)}),
    ("figureA6", 1000, {*product(INPUTS, [0.0625])}),
    ("label", 200_000, set()),
])  # fmt: skip
def test_which_canaries_exceed_the_add_remove_epsilon(name, num_runs, not_above):
    """And that the gradient leads, and the worst case stays below the substitute epsilon."""
    rows = table_of(name).query("step == step.max()")
    keys = ["sample_rate", "noise_multiplier"]
    accounted = rows[rows["series"].str.startswith("accounted")]
    limits = accounted.pivot_table(index=keys, columns="series", values="epsilon")
    bounds = rows.query("series == 'audited' and num_runs == @num_runs").join(limits, on=keys)
    below = bounds.query("not epsilon > accounted_add_remove")
    assert {*zip(below["canary"], below["sample_rate"], strict=True)} == not_above
    if name == "figure2":
        assert (bounds["epsilon"] < bounds["accounted_substitute"]).all()
    if name in ("figure4", "figureA6"):
        leading = bounds.loc[bounds.groupby("sample_rate")["epsilon"].idxmax(), "canary"]
        assert {*leading} == {"gradient"}


def test_no_set_proves_more_with_privacy_and_gradients_exceed_add_remove_from_the_first_step_on():
    rows = table_of("boglioni-table2").query("measure != 'loss_gap' and step == 100")
    paired = rows.dropna(subset="compared_with")
    assert len(paired) == 2 * 6
    assert ((paired["lower"] < 0) & (paired["upper"] > 0)).all()
    table = table_of("cebere-housing-substitute")
    membership = table.query("series == 'accounted_add_remove'").set_index("step")["epsilon"]
    gradients = table.query("series == 'audited' and canary != 'loss'")
    assert (gradients["epsilon"] > gradients["step"].map(membership)).all()


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


def test_the_encoding_loss_proves_less_than_is_accounted_and_more_than_a_linear_loss():
    rows = table_of("hidden-state").query("adjacency != 'zero_out'")
    for (adjacency, sigma), cell in rows.groupby(["adjacency", "noise_multiplier"]):
        accounted = cell.set_index("series")["epsilon"][f"accounted_{adjacency}"]
        by_score = cell.set_index("score")["epsilon"]
        assert by_score["decoded"] < accounted
        if sigma <= 1:
            assert by_score["decoded"] > by_score["final_sum"]


def test_few_valid_bounds_of_published_audits_are_above_what_is_accounted():
    """Each bound exceeds it with a probability of 5 % at most, and by little."""
    assert {f"published/{name}" for name in PAPERS} == {*published_names()}
    for said in PAPERS.values():
        assert any("theirs" in line and "differs" in line for line in said)
    tables = [pd.read_csv(KEPT / f"{name}.tsv", sep="\t") for name in PAPERS]
    bounds = pd.concat(tables)
    # What is accounted for Poisson samples does not hold for shuffled batches.
    valid = bounds[bounds["is_valid"] & ~bounds["audit"].str.startswith("shuffled")]
    above = valid[valid["epsilon"] > valid["accounted"]]
    assert len(above) <= binom(len(valid), 0.05).isf(1e-3)
    assert (above["epsilon"] / above["accounted"]).max() < 1.01


def test_bounds_of_published_audits_are_those_of_the_figures():
    for audit, figure, rows in (
        ("shuffling: shuffled-adjacencyzero_out-other_recordsopposite-sigma1.1",
         "published-shuffling", "adjacency == 'zero_out' & noise_multiplier == 1.1"),
        ("hidden-state: encoding-adjacencysubstitute-sigma0.8", "hidden-state",
         "canary == 'encoding_loss' & adjacency == 'substitute' & noise_multiplier == 0.8"),
        ("last-iterate: gradients-adjacencyadd_remove", "last-iterate",
         "adjacency == 'add_remove' & step == 400"),
    ):  # fmt: skip
        name, audit = audit.split(": ")
        kept = pd.read_csv(KEPT / f"{name}.tsv", sep="\t").set_index("audit")
        drawn = table_of(figure).query("series in ('audited', 'shuffled_opposite')").query(rows)
        assert kept["epsilon"][audit] == pytest.approx(drawn["epsilon"].item(), rel=1e-9)


def test_a_row_has_the_numbers_of_one_valid_bound_and_an_absent_audit_is_named():
    columns = ["threshold_rule", "conversion", "is_valid", "epsilon"]
    rules = [("in_sample", "gdp", False, 9.125), ("combined", "gdp", True, 7.5)]
    rules.append(("combined", "subsampled_gaussian", True, 8.25))
    fields = {"audit": "x", "num_runs": 2000, "accounted": 10.0, "minutes": 0.5}
    bounds = pd.DataFrame(rules, columns=columns).assign(**fields)
    said = {"audit": "x", "models": 2000, "of": "some", "theirs": "9", "differs": "data"}
    line = "`name`: some|2,000|10.00|9.12|**8.25**|9|< 1|data"
    assert row("name", said, bounds) == tuple(line.split("|"))
    without = bounds[bounds["conversion"] == "gdp"].assign(minutes=1.6)
    assert row("name", said, without)[4:7] == ("**7.50**", "9", "2")
    with pytest.raises(ValueError, match="name: 0 valid bounds of audit x with 2 models"):
        row("name", said | {"models": 2}, bounds)
