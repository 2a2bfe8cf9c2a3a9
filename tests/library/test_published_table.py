"""The table of published audits is made of the results that are kept beside it."""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from scipy.stats import binom

from benchmarks.published import DOCS, KEPT, page, row, table
from dpcanary.installation import published_names

PAGE = Path(__file__).parents[2] / "docs/published.md"
PAPERS = yaml.safe_load((KEPT / "papers.yaml").read_text())


def test_the_table_is_current():
    assert PAGE.read_text() == page(), "run: python -m benchmarks.published"


def test_every_published_audit_is_on_the_page():
    for name in published_names():
        assert f"dpcanary run {name}" in PAGE.read_text()
    assert {f"published/{name}" for name in PAPERS} == {*published_names()}


def test_every_paper_is_compared():
    """Each name has what the paper says beside what is proven, and what differs."""
    for said in PAPERS.values():
        assert any("theirs" in row and "differs" in row for row in said)


def test_numbers_of_figures_are_those_of_their_rows():
    lines = table().splitlines()
    [shuffled] = [line for line in lines if "opposite gradients" in line]
    assert "| 50,000 | 1.66 | - | **5.12** | up to 4 times" in shuffled
    [encoding] = [line for line in lines if "encoding loss" in line]
    assert "| 20,000 | 5.74 | - | **5.30** |" in encoding
    ratios = {}
    bounds = pd.read_csv(KEPT / "shuffling.tsv", sep="\t").set_index("audit")
    for adjacency in ("add_remove", "zero_out", "substitute"):
        of = bounds.loc[f"shuffled-adjacency{adjacency}-other_recordsopposite-sigma1.1"]
        ratios[adjacency] = f"{of['epsilon'] / of['accounted']:.1f}"
    said = "{add_remove} times under add/remove, {zero_out} under zero-out and {substitute} under"
    assert said.format(**ratios) in " ".join(PAGE.read_text().split())


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
def test_bounds_are_those_of_the_figures(name, figure, audit, values):
    drawn = pd.read_csv(DOCS / f"results/{figure}.tsv", sep="\t")
    for column, value in {"series": "audited", **values}.items():
        drawn = drawn[drawn[column] == value]
    kept = pd.read_csv(KEPT / f"{name}.tsv", sep="\t")
    [epsilon] = kept[kept["audit"] == audit]["epsilon"]
    assert epsilon == pytest.approx(drawn["epsilon"].item(), rel=1e-9)


def test_few_valid_bounds_are_above_the_accounted_epsilon():
    """Each exceeds it with a probability of 5 % at most."""
    tables = {name: pd.read_csv(KEPT / f"{name}.tsv", sep="\t") for name in PAPERS}
    # What is accounted for Poisson samples does not hold for shuffled batches.
    shuffled = tables["shuffling"]
    tables["shuffling"] = shuffled[~shuffled["audit"].str.startswith("shuffled")]
    bounds = pd.concat(tables.values())
    valid = bounds[bounds["is_valid"]]
    above = valid[valid["epsilon"] > valid["accounted"]]
    assert len(above) <= binom(len(valid), 0.05).isf(1e-3)
    most = (above["epsilon"] / above["accounted"] - 1).max()
    said = f"Of the {len(valid)} valid bounds in these tables, without those of shuffled batches, "
    said += f"{len(above)} are above the accounted epsilon, by {100 * most:.1f} % at most"
    assert said in " ".join(PAGE.read_text().split())


def test_an_audit_that_is_not_there_is_named():
    bounds = pd.read_csv(KEPT / "nasr-digits.tsv", sep="\t")
    with pytest.raises(ValueError, match="nasr-digits: 0 valid bounds of audit x with 2 models"):
        row("nasr-digits", {"audit": "x", "models": 2, "of": ""}, bounds)


def test_what_the_exact_curve_adds():
    bounds = pd.read_csv(KEPT / "nasr-digits.tsv", sep="\t")
    of_steps = bounds["audit"].isin(["two_add_remove", "many_add_remove"])
    valid = bounds[of_steps & (bounds["threshold_rule"] == "combined")]
    by_conversion = valid.pivot(index="audit", columns="conversion", values="epsilon")
    more = by_conversion["subsampled_gaussian"] - by_conversion["gdp"]
    said = f"proves {more.min():.1f} to {more.max():.1f} more"
    assert said in " ".join(PAGE.read_text().split())
