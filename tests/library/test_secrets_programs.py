"""The programs of docs/secrets.md print what the page says, and its example runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "secrets.md").read_text()


def printed_by(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", str(DOCS / "examples" / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1_500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def shown(line: str) -> list[float]:
    return [float(value) for value in re.findall(r">= ([\d.]+)", line)]


def test_the_example_of_the_page_shows_what_the_page_says(capsys):
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "secrets.md", "exec"), {})
    said = capsys.readouterr().out.strip()
    assert said in " ".join(PAGE.split())


@pytest.mark.long
def test_finished_models_are_audited_by_account_numbers():
    linear, forest, tree, neighbours = printed_by("secrets_finished_model").splitlines()
    for line in (linear, tree):
        assert shown(line) == [0, 0]
    assert shown(forest)[0] < 1
    assert "20 of 20 account numbers ranked first" in neighbours
    assert shown(neighbours) == [6.26, 11.03]
    for line in (linear, forest, tree, neighbours):
        assert float(line.rpartition(" ")[2]) > 0.01  # the law, on customers it never saw


@pytest.mark.long
def test_a_randomised_trial_is_audited_and_the_trap_is_found():
    logistic, splines, forest, wrong = printed_by("secrets_randomised_trial").splitlines()
    assert shown(logistic) == [0]
    assert 0.8 < shown(splines)[0] < 1.3
    assert 5.5 < shown(forest)[0] < 5.9
    for line in (logistic, splines, forest):
        assert float(line.rpartition(" ")[2]) > 0.01
    assert float(wrong.rpartition(" ")[2]) < 1e-6
    assert float(re.search(r"'shows' ([\d.]+)", wrong)[1]) > 0.5


@pytest.mark.exhaustive
def test_a_language_model_without_dp_shows_at_least_five_and_with_dp_no_more_than_accounted():
    uniform, free, *private = printed_by("secrets_language_model").splitlines()
    assert float(uniform.rpartition(" ")[2]) > 0.01
    assert shown(free)[0] >= 5
    assert len(private) == 2
    for line in private:
        assert shown(line)[0] <= float(re.search(r"([\d.]+) substitute", line)[1])
