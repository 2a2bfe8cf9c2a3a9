"""The programs of docs/secrets.md print what the page says, and its example runs."""

import re
import sys

import pytest
from running import ROOT, printed_by

PAGE = (ROOT / "docs/secrets.md").read_text()


def lines_of(name, folder) -> list[str]:
    program = ROOT / f"docs/examples/{name}.py"
    return printed_by([sys.executable, "-W", "ignore", program], folder).splitlines()


def shown(line: str) -> list[float]:
    return [float(value) for value in re.findall(r">= ([\d.]+)", line)]


def last(line: str) -> float:
    """The p-value of the law of ranks, on customers that the model never saw."""
    return float(line.rpartition(" ")[2])


@pytest.mark.long
def test_the_example_of_the_page_shows_what_the_page_says(capsys):
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "secrets.md", "exec"), {})
    said = capsys.readouterr().out.strip()
    assert said in " ".join(PAGE.split())


@pytest.mark.long
def test_finished_models_are_audited_by_account_numbers(tmp_path):
    linear, forest, tree, neighbours = lines = lines_of("secrets_finished_model", tmp_path)
    assert shown(linear) == shown(tree) == [0, 0]
    assert shown(forest)[0] < 1
    assert "20 of 20 account numbers ranked first" in neighbours
    assert shown(neighbours) == [6.26, 11.03]
    assert min(map(last, lines)) > 0.01


@pytest.mark.long
def test_a_randomised_trial_is_audited_and_the_trap_is_found(tmp_path):
    *right, wrong = lines_of("secrets_randomised_trial", tmp_path)
    [logistic], [splines], [forest] = map(shown, right)
    assert logistic == 0
    assert 0.8 < splines < 1.3
    assert 5.5 < forest < 5.9
    assert min(map(last, right)) > 0.01
    assert last(wrong) < 1e-6
    assert float(re.search(r"'shows' ([\d.]+)", wrong)[1]) > 0.5


@pytest.mark.exhaustive
def test_a_language_model_without_dp_shows_five_and_with_dp_at_most_what_is_accounted(tmp_path):
    uniform, free, *private = lines_of("secrets_language_model", tmp_path)
    assert last(uniform) > 0.01
    assert shown(free)[0] >= 5
    assert len(private) == 2
    for line in private:
        assert shown(line)[0] <= float(re.search(r"([\d.]+) substitute", line)[1])
