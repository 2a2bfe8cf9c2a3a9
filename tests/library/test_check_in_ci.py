"""The check where others run it: the GitHub Action with its example, and the pytest plugin."""

import os
import re
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "docs/examples/check_workflow.yml"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def calls() -> list[dict]:
    """What the example gives to each call of the action."""
    [job] = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    return [step["with"] for step in job["steps"] if "/dpcanary@" in step.get("uses", "")]


def run_action(given: dict, folder: Path) -> tuple[subprocess.CompletedProcess, str]:
    """Runs the steps of the action as GitHub does, without its installation."""
    inputs = {name: one["default"] for name, one in ACTION["inputs"].items()}
    assert given.keys() <= inputs.keys()
    inputs |= {**given, "install": ""}
    summary = folder / "summary.md"

    def filled(text: str) -> str:
        found = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], text)
        assert "${{" not in found
        return found

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"]  # an input is not a part of the script
        result = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step["run"]],
            cwd=ROOT / filled(step.get("working-directory", ".")),
            env={
                **os.environ,
                "PATH": path,
                "GITHUB_STEP_SUMMARY": str(summary),
                **{name: filled(value) for name, value in step.get("env", {}).items()},
            },
            capture_output=True,
            text=True,
            check=False,
        )
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
    (tmp_path / "test_own.py").write_text(
        textwrap.dedent("""
        import sys

        import pytest

        sys.path.insert(0, "EXAMPLES")


        def test_nothing_is_imported_for_the_plugin():
            assert "torch" not in sys.modules


        def test_my_gradients(assert_model):
            from checked_training import build, records

            assert_model(build()[0], records())


        def test_my_loop(assert_mechanism):
            from checked_training import train_by_hand

            assert_mechanism(train_by_hand, num_trainings=10)
        """).replace("EXAMPLES", str(ROOT / "docs/examples"))
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "dpcanary.pytest_plugin", "-q", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed" in result.stdout, result.stdout
    assert "AssertionError: the training loop is not what is accounted" in result.stdout
    assert "FAIL  normalisation" in result.stdout
    assert "test_own.py:" in result.stdout


def test_pytest_finds_the_plugin():
    names = [one.value for one in entry_points(group="pytest11") if "dpcanary" in one.value]
    assert names == ["dpcanary.pytest_plugin"]


@pytest.mark.parametrize(
    ("given", "installed"),
    [
        (ACTION["inputs"]["install"]["default"], "-m pip install --quiet /where/it/is"),
        ("dpcanary==0.1.0", "-m pip install --quiet dpcanary==0.1.0"),
        ("", ""),
    ],
)
def test_the_action_installs_its_own_version_by_default(given, installed, tmp_path):
    """Not what a registry has under this name."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", ACTION["runs"]["steps"][0]["run"]],
        env={"PATH": path, "INSTALL": given, "GITHUB_ACTION_PATH": "/where/it/is"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == installed
