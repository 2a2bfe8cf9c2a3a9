"""The package docs/examples/my_audits: installed, run, and in a figure."""

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from running import ROOT, Project, install, shared

import dpcanary
from dpcanary.core.plugins import function_named

pytestmark = pytest.mark.long
PACKAGE = ROOT / "docs/examples/my_audits"
OF_MINE = {
    "canary": ["mirrored", "last_gradient", "gradient"], "sample_rate": 0.5, "num_runs": 40,
    "noise_multiplier": 0.5, "num_steps": 4, "record_every": 2, "learning_rate": 1.0,
}  # fmt: skip
CONFIG = {
    "experiment": "mine", "delta": 1e-5, "threshold_rules": ["at_zero", "in_sample"],
    "allow_not_valid": True, "datasets": {"digits": {"source": "digits", "num_records": 100}},
    "audits": {"mine": {**OF_MINE, "dataset": "digits"}},
    "figures": {
        "steps": {"kind": "epsilon_by_step", "sweeps": ["mine"]},
        "spread": {"kind": "spread", "sweeps": ["mine"], "options": {"colour": "red"}},
    },
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A user's folder, with the package in `installed`, where jobs find it."""

    def write(folder: Path) -> None:
        Project.new(folder, CONFIG)
        install(PACKAGE, folder / "installed")

    project = Project(shared("plugins", write)).copy(tmp_path / "project")
    monkeypatch.setenv("PYTHONPATH", str(project.folder / "installed"))
    return project


def test_each_addition_uses_public_names_alone_and_the_page_shows_its_code():
    modules = {path.stem: path.read_text() for path in (PACKAGE / "my_audits").glob("*.py")}
    assert {*modules} == {"__init__", "mirrored", "last_gradient", "at_zero", "spread"}
    for text in modules.values():
        # From the package itself, or from a namespace that it lists.
        assert {*re.findall(r"from dpcanary\.(\S+) import", text)} <= {*dpcanary.__all__}
    page = (ROOT / "docs/adding.md").read_text()
    shown = re.findall(r"```python\n(def (?:mirrored|choose)\(.*?)```", page, re.DOTALL)
    assert len(shown) == 2
    assert all(block in modules["mirrored"] + modules["at_zero"] for block in shown)


def valid_by_the_rule(table: Path) -> pd.DataFrame:
    """The rows of the package's own rule, which is the only one that is valid."""
    estimates = pd.read_csv(table, sep="\t")
    of_rule = estimates["threshold_rule"] == "at_zero"
    assert (estimates["is_valid"] == of_rule).all()
    assert of_rule.any()
    assert (estimates.loc[of_rule, "threshold"] == 0).all()
    return estimates[of_rule]


def test_jobs_find_an_adversary_and_a_rule_by_their_names(project):
    target = "results/mine/estimates/mine-last_gradient.tsv"
    project.run(target)
    valid = valid_by_the_rule(project.folder / target)
    assert (valid["epsilon_lower"] > 0).any()  # a separation of 4 standard deviations
    assert "figures/spread.png" in project.plan().outputs("draw_figure", "png")


def test_a_kind_of_figure_draws_the_valid_bounds_of_last_steps(monkeypatch):
    monkeypatch.syspath_prepend(PACKAGE)
    rows = [("a", 1, True, 9.0), ("a", 2, True, 1.5), ("a", 2, False, 7.0), ("b", 1, True, 2.5)]
    summary = pd.DataFrame(rows, columns=["audit", "step", "is_valid", "epsilon_lower"])
    kind = import_module("my_audits.spread").SPREAD
    kind.check_function(has_axis=False)
    summary = summary.assign(threshold_rule="x", repeat=0)
    figure, table = function_named(kind.draw)(summary, colour="red")
    assert table[["audit", "epsilon_lower"]].to_numpy().tolist() == [["a", 1.5], ["b", 2.5]]
    [dots] = figure.axes[0].lines
    assert ([*dots.get_xdata()], dots.get_color()) == ([1.5, 2.5], "red")
    for options, reason in (({"colour": "rod"}, "no colour"), ({"colour": "red"}, ""), ({}, "")):
        why_not = function_named(kind.check)({}, SimpleNamespace(options=options), None)
        assert (reason in why_not, bool(why_not)) == (True, bool(reason))


@pytest.mark.exhaustive
def test_both_adversaries_and_the_rule_give_bounds_and_are_in_a_figure(project):
    project.run()
    results = project.folder / "results/mine"
    valid = valid_by_the_rule(results / "summary.tsv")
    assert {*valid["canary"]} == {"mirrored", "last_gradient", "gradient"}
    assert {*valid.loc[valid["canary"] == "last_gradient", "model"]} == {"process"}
    assert (valid["epsilon_lower"] <= valid["epsilon_upper_substitute"]).all()
    drawn = pd.read_csv(results / "figures/steps.tsv", sep="\t")
    assert {"mirrored", "last_gradient"} <= {*drawn["canary"].dropna()}
    assert {*drawn["threshold_rule"].dropna()} == {"at_zero", "in_sample"}
    assert (results / "figures/steps.png").stat().st_size > 10_000
    costs = project.run("estimate_cost")
    assert "core-hours" in costs
    assert re.search(r"^craft_canaries +2 ", costs, re.MULTILINE)


def test_a_change_of_a_function_makes_its_own_canaries_again(project, monkeypatch):
    project.pretend()
    with (project.folder / "installed/my_audits/mirrored.py").open("a") as module:
        module.write("\n# edited\n")
    plan = project.plan()
    assert plan.outputs("craft_canaries") == {"canaries/mine-mirrored.npz"}
    assert {path.split("/")[1] for path in plan.outputs("train_shard")} == {"mine-mirrored"}
    assert "draw_shard" not in plan.jobs
    monkeypatch.delenv("PYTHONPATH")
    assert "unknown name" in project.looked("--dry-run", fails=True)
