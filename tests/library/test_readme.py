"""The README's examples do what it says."""

import re
from pathlib import Path

import numpy as np
import yaml

from dpcanary.settings.parsing import parse_experiment

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_config_is_valid():
    assert len(parse_experiment(yaml.safe_load(blocks("yaml")[0])).audits) == 4


def test_the_keys_of_other_models_are_valid():
    config, model = map(yaml.safe_load, blocks("yaml"))
    config["audits"]["mine"] |= model
    audits = parse_experiment(config).audits.values()
    assert {audit.model for audit in audits} == {model["model"]}


def test_the_library_example_runs(capsys):
    rng = np.random.default_rng(0)
    scores = {"scores_0": rng.normal(2, 1, 500), "scores_1": rng.normal(0, 1, 500)}
    exec(compile(blocks("python")[0], "README.md", "exec"), scores)
    printed = capsys.readouterr().out
    assert "add_remove EpsilonBounds(lower=4.4" in printed
    assert "substitute EpsilonBounds(lower=9.9" in printed


def test_links_lead_somewhere():
    for path in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (Path(__file__).parents[2] / path).exists(), path
