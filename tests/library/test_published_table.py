"""The table of published audits is made of the results that are kept beside it."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from benchmarks.published import KEPT, page
from dpcanary.installation import published_names

PAGE = Path(__file__).parents[2] / "docs/published.md"
PAPERS = yaml.safe_load((KEPT / "papers.yaml").read_text())


def test_the_table_is_current():
    assert PAGE.read_text() == page(), "run: python -m benchmarks.published"


def test_every_published_audit_is_on_the_page():
    for name in published_names():
        assert f"dpcanary run {name}" in PAGE.read_text()
    of_own_pages = {f"published/{name}" for name in ("shuffling", "last-iterate", "hidden-state")}
    assert {f"published/{name}" for name in PAPERS} | of_own_pages == {*published_names()}


@pytest.mark.parametrize("name", PAPERS)
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
