"""The README says what is so, and the examples of configs are valid."""

import re
from pathlib import Path

import pytest
import yaml

from dpcanary import Mechanism, __version__, account_by_adjacency
from dpcanary.settings.parsing import parse_experiment

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONFIGS = (ROOT / "docs/configs.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", CONFIGS, re.DOTALL)


def test_the_config_is_valid():
    assert len(parse_experiment(yaml.safe_load(blocks("yaml")[0])).audits) == 4


def test_the_keys_of_other_models_are_valid():
    config, model = map(yaml.safe_load, blocks("yaml"))
    config["audits"]["mine"] |= model
    audits = parse_experiment(config).audits.values()
    assert {audit.model for audit in audits} == {model["model"]}


def test_the_three_numbers_are_those_of_the_figure():
    """The accounted ones are those of the accountant; the proven one is between them."""
    for number in ("**4.4**", "**10**", "**8.9**"):
        assert number in README
    mechanism = Mechanism("substitute", sample_rate=1.0, noise_multiplier=22.36, num_steps=500)
    found = account_by_adjacency(mechanism, delta=1e-5)
    assert found.add_remove == pytest.approx(4.4, abs=0.05)
    assert found.substitute == pytest.approx(10.0, abs=0.05)


def test_links_lead_somewhere():
    for path in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (Path(__file__).parents[2] / path).exists(), path


def test_the_citation_file_has_every_paper_that_is_named_by_its_number():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    titles = [reference["title"] for reference in cited["references"]]
    assert len(titles) == len({*titles})
    for reference in cited["references"]:
        assert reference["type"] in ("article", "book")
        assert reference["authors"]
        assert 1900 < reference["year"] < 2100
    known = {reference.get("url", "").rpartition("/")[2] for reference in cited["references"]}
    texts = [*ROOT.glob("docs/*.md"), *(ROOT / "dpcanary").rglob("*.py")]
    named = [re.findall(r"\b\d{4}\.\d{5}\b(?=[),. ])", path.read_text()) for path in texts]
    numbers = {number for found in named for number in found if 1 <= int(number[2:4]) <= 12}
    assert len(numbers) >= 7
    assert numbers <= known
    assert cited["version"] == __version__
