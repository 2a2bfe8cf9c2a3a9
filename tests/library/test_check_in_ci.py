"""The check where others run it: the GitHub Action with its example, and the pytest plugin."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "docs/examples/check_workflow.yml"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def calls() -> list[dict]:
    [job] = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    return [step["with"] for step in job["steps"] if "/dpcanary@" in step.get("uses", "")]


def run_script(script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def run_action(given: dict, folder: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    """Runs the steps of the action as GitHub does, without its installation."""
    inputs = {name: one["default"] for name, one in ACTION["inputs"].items()}
    assert given.keys() <= inputs.keys()
    inputs |= {**given, "install": ""}
    summary = folder / "summary.md"

    def filled(text: str) -> str:
        text = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], text)
        assert "${{" not in text
        return text

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    known = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(summary)}
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]  # an input is not a part of the script
        own = {name: filled(value) for name, value in step.get("env", {}).items()}
        place = ROOT / filled(step.get("working-directory", "."))
        result = run_script(step["run"], cwd=place, env=known | own)
        if result.returncode:
            break
    return result, summary.read_text() if summary.exists() else ""


@pytest.mark.long
@pytest.mark.parametrize("given", calls(), ids=["loop", "model"])
def test_the_example_of_the_action_passes(given, tmp_path):
    result, summary = run_action(given, tmp_path)
    assert result.returncode == 0, result.stderr
    assert summary.startswith("```\nok ")
    assert summary.endswith("```\n")
    assert result.stdout in summary


@pytest.mark.long
def test_the_action_fails_with_a_wrong_loop(tmp_path):
    given = {**calls()[0], "loop": "checked_training:train_by_hand"}
    result, summary = run_action(given, tmp_path)
    assert result.returncode == 3
    assert "FAIL  normalisation" in summary
    assert summary.endswith("```\n")


def test_an_input_of_the_action_is_not_run(tmp_path):
    given = {"loop": f"a:b; touch {tmp_path}/run $(touch {tmp_path}/run)"}
    result, _ = run_action(given, tmp_path)
    assert result.returncode != 0
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_the_fixtures_of_the_plugin(tmp_path):
    examples = str(ROOT / "docs/examples")
    (tmp_path / "test_own.py").write_text(f"""
import sys

sys.path.insert(0, {examples!r})


def test_nothing_is_imported_for_the_plugin():
    assert "torch" not in sys.modules


def test_my_gradients(assert_model):
    from checked_training import build, records

    assert_model(build()[0], records())


def test_my_loop(assert_mechanism):
    from checked_training import train_by_hand

    assert_mechanism(train_by_hand, num_trainings=10)
""")
    command = f"{sys.executable} -m pytest -p dpcanary.pytest_plugin -q {tmp_path}"
    result = run_script(command, cwd=tmp_path)
    assert "1 failed, 2 passed" in result.stdout, result.stdout
    assert "AssertionError: the training loop is not what is accounted" in result.stdout
    assert "FAIL  normalisation" in result.stdout
    assert "test_own.py:" in result.stdout


def test_pytest_finds_the_plugin():
    names = [one.value for one in entry_points(group="pytest11") if "dpcanary" in one.value]
    assert names == ["dpcanary.pytest_plugin"]


def test_the_action_installs_its_own_version_by_default(tmp_path):
    """Not what a registry has under this name."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    for given, installed in [
        (ACTION["inputs"]["install"]["default"], "-m pip install --quiet /where/it/is"),
        ("dpcanary==0.1.0", "-m pip install --quiet dpcanary==0.1.0"),
        ("", ""),
    ]:
        variables = {"PATH": path, "INSTALL": given, "GITHUB_ACTION_PATH": "/where/it/is"}
        result = run_script(ACTION["runs"]["steps"][0]["run"], env=variables)
        assert (result.returncode, result.stdout.strip()) == (0, installed)
