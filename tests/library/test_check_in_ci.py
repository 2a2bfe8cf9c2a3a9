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
from running import PROGRAMS, ROOT, environment

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def calls() -> list[dict]:
    workflow = ROOT / "docs/examples/check_workflow.yml"
    [job] = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["with"] for step in job["steps"] if "/dpcanary@" in step.get("uses", "")]


def run_script(script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-eo", "pipefail", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def run_action(
    arguments: dict, folder: Path, *, programs: Path = PROGRAMS
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Runs the steps of the action as GitHub does, without its installation."""
    inputs = {name: entry["default"] for name, entry in ACTION["inputs"].items()}
    assert arguments.keys() <= inputs.keys()
    inputs |= {**arguments, "install": ""}
    summary = folder / "summary.md"

    def filled(text: str) -> str:
        text = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], text)
        assert "${{" not in text
        return text

    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]  # an input is not a part of the script
        own = {name: filled(value) for name, value in step.get("env", {}).items()}
        variables = environment(programs, GITHUB_STEP_SUMMARY=str(summary), **own)
        place = ROOT / filled(step.get("working-directory", "."))
        result = run_script(step["run"], cwd=place, env=variables)
        if result.returncode:
            break
    return result, summary.read_text() if summary.exists() else ""


@pytest.mark.long
@pytest.mark.parametrize(("arguments", "status", "line"), [
    *((arguments, 0, "ok ") for arguments in calls()),
    ({**calls()[0], "loop": "checked_training:train_by_hand"}, 3, "FAIL  normalisation"),
], ids=["loop", "model", "wrong loop"])  # fmt: skip
def test_the_example_of_the_action_passes_and_a_wrong_loop_fails(arguments, status, line, tmp_path):
    result, summary = run_action(arguments, tmp_path)
    assert result.returncode == status, result.stderr
    assert summary == f"```\n{result.stdout}```\n"
    assert f"\n{line}" in summary


def put_program(path: Path) -> None:
    """A program that prints its arguments."""
    path.write_text('#!/bin/sh\necho "$@"\n')
    path.chmod(0o755)


def test_an_input_of_the_action_is_not_run(tmp_path):
    put_program(tmp_path / "dpcanary")
    loop = f"a:b; touch {tmp_path}/run $(touch {tmp_path}/run)"
    result, _ = run_action({"loop": loop}, tmp_path, programs=tmp_path)
    assert result.stdout == f"check {loop}\n"
    assert not (tmp_path / "run").exists()


OWN_TESTS = """
import sys

def test_nothing_is_imported_for_the_plugin():
    assert "torch" not in sys.modules

def test_my_gradients(assert_model):
    from checked_training import build, records
    assert_model(build()[0], records())

def test_my_loop(assert_mechanism):
    from checked_training import train_by_hand
    assert_mechanism(train_by_hand, num_trainings=10)
"""


@pytest.mark.long
def test_the_fixtures_of_the_plugin(tmp_path):
    (tmp_path / "test_own.py").write_text(OWN_TESTS)
    command = f"{sys.executable} -m pytest -p dpcanary.pytest_plugin -q {tmp_path}"
    paths = os.pathsep.join([str(ROOT / "docs/examples"), os.environ.get("PYTHONPATH", "")])
    printed = run_script(command, cwd=tmp_path, env=environment(PYTHONPATH=paths)).stdout
    failed = "AssertionError: the training loop is not what is accounted"
    for text in ("1 failed, 2 passed", failed, "FAIL  normalisation", "test_own.py:"):
        assert text in printed, printed


def test_pytest_finds_the_plugin():
    names = [entry.value for entry in entry_points(group="pytest11") if "dpcanary" in entry.value]
    assert names == ["dpcanary.pytest_plugin"]


def test_the_action_installs_its_own_version_by_default(tmp_path):
    """Not what a registry has under this name."""
    put_program(tmp_path / "python")
    pip = "-m pip install --quiet"
    for requirement, installed in [
        (ACTION["inputs"]["install"]["default"], f"{pip} /where/it/is"),
        *(("dpcanary==0.1.0", f"{pip} dpcanary==0.1.0"), ("", "")),
    ]:
        variables = environment(tmp_path, INSTALL=requirement, GITHUB_ACTION_PATH="/where/it/is")
        result = run_script(ACTION["runs"]["steps"][0]["run"], env=variables)
        assert (result.returncode, result.stdout.strip()) == (0, installed)
