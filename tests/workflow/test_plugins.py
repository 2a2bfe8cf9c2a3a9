"""The examples of docs/adding.md, as a package of their own: installed, run, and in a figure."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from running import ROOT, SNAKEFILE, SNAKEMAKE, Plan, looked, printed_by, shared

import dpcanary

pytestmark = pytest.mark.long
PAGE = (ROOT / "docs/adding.md").read_text()
CONFIG = {
    "experiment": "mine",
    "delta": 1e-5,
    "threshold_rules": ["at_zero", "in_sample"],
    "allow_not_valid": True,
    "datasets": {"digits": {"source": "digits", "num_records": 100}},
    "audits": {
        "mine": {
            "canary": ["mirrored", "last_gradient", "gradient"],
            "dataset": "digits",
            "sample_rate": 0.5,
            "noise_multiplier": 0.5,
            "num_steps": 4,
            "num_runs": 40,
            "record_every": 2,
            "learning_rate": 1.0,
        }
    },
    "figures": {"steps": {"kind": "epsilon_by_step", "sweeps": ["mine"]}},
}
LEGEND = """
import json, sys
import pandas as pd
from dpcanary.figures.bounds import draw_bounds_figure
from dpcanary.figures import style
figure, table = draw_bounds_figure(pd.read_csv(sys.argv[1], sep="\\t"), axis="step")
texts = [text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text"))]
colours = {name: style.canary_colour(name) for name in ("mirrored", "last_gradient", "gradient")}
print(json.dumps({"texts": texts, "colours": colours}))
"""


def blocks() -> dict[str, str]:
    """The files of the page, by the path in their first line."""
    found = re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    return dict(found)


OPTIONS = ["--cores", "2", "--snakefile", SNAKEFILE, "--configfile", "mine.yaml"]


@pytest.fixture(scope="module")
def folder() -> Path:
    """A user's folder with the finished experiment, and the package in `installed`.

    A whole run: what the page adds is found by name in every stage.
    """

    def write(folder: Path) -> None:
        source, target = folder / "source", folder / "installed"
        (source / "my_audits").mkdir(parents=True)
        (source / "my_audits/__init__.py").touch()
        for path, text in blocks().items():
            (source / path).write_text(text)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(target), str(source)], check=True)
        (folder / "mine.yaml").write_text(yaml.safe_dump(CONFIG))
        printed_by([*SNAKEMAKE, *OPTIONS], folder, PYTHONPATH=str(target))

    return shared("plugins", write)


def test_each_addition_uses_public_names_alone():
    assert {*blocks()} == {
        "pyproject.toml",
        "my_audits/mirrored.py",
        "my_audits/last_gradient.py",
        "my_audits/at_zero.py",
    }
    for text in blocks().values():
        # From the package itself, or from a namespace that it lists.
        assert {*re.findall(r"from dpcanary\.(\S+) import", text)} <= {*dpcanary.__all__}


def test_both_adversaries_and_the_rule_give_bounds(folder):
    summary = pd.read_csv(folder / "results/mine/summary.tsv", sep="\t")
    assert set(summary["canary"]) == {"mirrored", "last_gradient", "gradient"}
    valid = summary[summary["threshold_rule"] == "at_zero"]
    assert valid["is_valid"].all()
    assert not summary.loc[summary["threshold_rule"] == "in_sample", "is_valid"].any()
    assert (valid["epsilon_lower"] <= valid["epsilon_upper_substitute"]).all()
    assert (valid["threshold"] == 0).all()
    by_gradient = valid[valid["canary"] == "last_gradient"]
    assert (by_gradient["epsilon_lower"] > 0).any()  # a separation of 4 standard deviations
    assert set(summary.loc[summary["canary"] == "last_gradient", "model"]) == {"process"}


def test_they_are_in_a_figure_with_a_label_and_a_colour(folder):
    drawn = pd.read_csv(folder / "results/mine/figures/steps.tsv", sep="\t")
    assert {"mirrored", "last_gradient"} <= set(drawn["canary"].dropna())
    assert set(drawn["threshold_rule"].dropna()) == {"at_zero", "in_sample"}
    assert (folder / "results/mine/figures/steps.png").stat().st_size > 10_000
    command = [sys.executable, "-c", LEGEND, str(folder / "results/mine/summary.tsv")]
    printed = printed_by(command, ROOT, PYTHONPATH=str(folder / "installed"))
    told = json.loads(printed.splitlines()[-1])
    assert {"mirrored record", "last gradient", "gradient"} <= set(told["texts"])
    assert any("at_zero rule" in text for text in told["texts"])
    assert len(set(told["colours"].values())) == 3


def test_a_change_of_a_function_makes_its_own_canaries_again(folder):
    installed = folder / "installed"
    module = installed / "my_audits/mirrored.py"
    text = module.read_text()
    module.write_text(text + "\n# edited\n")
    try:
        plan = Plan.of(folder, *OPTIONS, PYTHONPATH=str(installed))
    finally:
        module.write_text(text)
    assert plan.outputs("craft_canaries") == {"canaries/mine-mirrored.npz"}
    assert {path.split("/")[1] for path in plan.outputs("train_shard")} == {"mine-mirrored"}
    assert "draw_shard" not in plan.jobs


@pytest.mark.exhaustive
def test_the_costs_of_both_are_estimated(folder):
    command = [*SNAKEMAKE, *OPTIONS, "estimate_cost"]
    printed = printed_by(command, folder, PYTHONPATH=str(folder / "installed"))
    assert "core-hours" in printed
    assert re.search(r"^craft_canaries +2 ", printed, re.MULTILINE)


def test_without_the_package_its_names_are_unknown(folder):
    assert "unknown name" in looked(folder, *OPTIONS, "--dry-run", fails=True)
