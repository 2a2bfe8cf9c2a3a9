"""The table of published audits is made of the results that are kept beside it."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from benchmarks.published import KEPT, epsilon_in, page, table
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
    for adjacency in ("add_remove", "zero_out", "substitute"):
        values = {"adjacency": adjacency, "noise_multiplier": 1.1}
        proven, claimed = (
            epsilon_in("published-shuffling", series=series, **values)
            for series in ("shuffled_opposite", "claimed")
        )
        ratios[adjacency] = f"{proven / claimed:.1f}"
    said = "{add_remove} times under add/remove, {zero_out} under zero-out and {substitute} under"
    assert said.format(**ratios) in " ".join(PAGE.read_text().split())
    with pytest.raises(ValueError, match="unpack"):
        epsilon_in("published-shuffling", series="claimed")


KEPT_NAMES = [name for name, rows in PAPERS.items() if "audit" in rows[0]]


@pytest.mark.parametrize("name", KEPT_NAMES)
def test_valid_bounds_are_below_the_accounted_epsilon(name):
    """Each exceeds it with a probability of 5 %; of these, whose seeds are fixed, none does."""
    bounds = pd.read_csv(KEPT / f"{name}.tsv", sep="\t")
    valid = bounds[bounds["is_valid"]]
    assert len(valid)
    assert (valid["epsilon"] <= valid["accounted"]).all()


def test_what_the_exact_curve_adds():
    bounds = pd.read_csv(KEPT / "nasr-digits.tsv", sep="\t")
    of_steps = bounds["audit"].isin(["two_add_remove", "many_add_remove"])
    valid = bounds[of_steps & (bounds["threshold_rule"] == "combined")]
    by_conversion = valid.pivot(index="audit", columns="conversion", values="epsilon")
    more = by_conversion["subsampled_gaussian"] - by_conversion["gdp"]
    said = f"proves {more.min():.1f} to {more.max():.1f} more"
    assert said in " ".join(PAGE.read_text().split())
