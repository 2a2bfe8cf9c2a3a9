"""The comparison with other tools: its page says what was measured, and its adapters read right.

The tools are not installed here. Stand-ins with their names take the calls.
"""

import hashlib
import json
import os
import subprocess
import sys
from itertools import product
from math import floor
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks import peer_adapters, peers
from dpcanary import estimate_epsilon
from dpcanary.core.files import read_json

ROOT = Path(__file__).parents[2]
RESULTS = read_json(peers.RESULTS)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    stand_in, node = MagicMock(), "privacy_guard.analysis.mia"
    for name in (
        *("jax_privacy", "privacy_estimates", "privacy_guard", "privacy_guard.analysis", node),
        *(f"{node}.{part}" for part in ("aggregate_analysis_input", "analysis_node")),
        *(f"{node}.fdp_analysis_node", "whitebox_auditing", "whitebox_auditing.ndis_1d"),
    ):
        monkeypatch.setitem(sys.modules, name, stand_in)
    return stand_in


def test_a_page_keeps_its_text_between_tables_and_needs_a_place_for_each():
    page = peers.PAGE.read_text()
    changed = page.replace("<!-- peers: scores -->\n", "<!-- peers: scores -->\nolder\n")
    assert peers.filled(changed + "end", RESULTS) == page + "end"
    with pytest.raises(ValueError, match="one-demo"):
        peers.filled(page.replace("<!-- peers: one-demo -->", ""), RESULTS)


def test_bounds_of_one_audit_are_rounded_down_on_the_page():
    """The tables of the demo's scores have a single audit in each cell, and no medians."""
    cells = [cell["name"] for cell in RESULTS["cells"] if cell["mu"] is None]
    rows = [row for row in RESULTS["rows"] if row["cell"] in cells]
    assert {row["audits"] for row in rows} == {1}
    lines = peers.PAGE.read_text().partition("### The demo's scores")[2].splitlines()
    for row in rows:
        [line] = [line for line in lines if line.startswith(f"| {row['label']} |")]
        assert f" {floor(100 * max(row['median'], 0.0)) / 100:.2f} |" in line


def test_catalogue_adapters_chart_and_results_agree():
    named = {(estimator.tool, estimator.call) for estimator in peers.ESTIMATORS}
    assert named == {*peer_adapters.CALLS}
    tools = {tool.name: tool for tool in peers.TOOLS}
    assert {*tools} == {tool for tool, _ in named}
    labels = {estimator.label for estimator in peers.ESTIMATORS}
    assert len(labels) == len(peers.ESTIMATORS)
    charted = {label for rows in peers.CHARTED.values() for label in rows.values()}
    assert labels >= charted > peers.NOT_CALLED_BOUNDS
    num_audits = {(row["label"], row["cell"]): row["audits"] for row in RESULTS["rows"]}
    for cell, estimator in product(RESULTS["cells"], peers.ESTIMATORS):
        if estimator.game == cell["game"] and "not_run" not in RESULTS["tools"][estimator.tool]:
            expected = min(estimator.audits[1], 1) if tools[estimator.tool].has_demo else 0
            if cell["mu"] is not None:
                expected = estimator.audits[peers.SIZES.index(cell["size"])]
            assert num_audits.get((estimator.label, cell["name"]), 0) == expected
    # Valid rules of ours are not above the truth too often.
    ours = [row for row in RESULTS["rows"] if row["label"].startswith("dpcanary")]
    assert len(ours) > 20
    assert not [row for row in ours if "in_sample" not in row["label"] and peers.is_too_often(row)]


@pytest.mark.parametrize("game", [peers.MANY, peers.ONE])
def test_scores_are_those_of_the_stored_hash(tmp_path, game):
    [cell] = [c for c in peers.simulated_cells() if (c.game, c.mu, c.size) == (game, 3.0, 250)]
    [stored] = [c for c in RESULTS["cells"] if c["name"] == cell.name]
    assert peers.write_request(cell, tmp_path, ROOT) == stored["sha256"]
    text = (tmp_path / "scores" / f"{cell.name}.json").read_bytes()
    assert hashlib.sha256(text).hexdigest().startswith(stored["sha256"])
    audits = json.loads(text)["audits"]
    worlds = [np.concatenate([audit[world] for audit in audits]) for world in (0, 1)]
    assert [scores.mean() for scores in worlds] == pytest.approx([3.0, 0.0], abs=0.02)
    assert {len(first) + len(second) for first, second in audits} == {500}
    sizes = {len(first) for first, _ in audits}
    assert sizes == {250} if game == peers.MANY else len(sizes) > 20


def test_a_row_counts_what_is_above_the_truth_and_too_often_is_beyond_doubt():
    cases = (0, 30, False), (1, 1, False), (2, 3, True), (25, 300, True), (20, 300, False)
    for above, audits, too_often in cases:
        expected = binomtest(above, audits).proportion_ci(0.95, method="exact")
        assert peers.share_interval(above, audits) == pytest.approx(tuple(expected), abs=1e-12)
        assert peers.is_too_often({"above": above, "audits": audits}) is too_often
    cell = peers.Cell("some", peers.MANY, truth=2.0, audits=5)
    numbers = [1.0, 2.000001, 2.1, None, 7.0]
    answer = {"epsilons": [{"epsilon_lower": n} for n in numbers], "seconds": [3, 1, 2, 5, 4]}
    row = peers.row(peers.ESTIMATORS[0], cell, answer)
    expected = {"audits": 5, "median": 2.0, "above": 2, "missing": 1, "seconds": 3.0}
    assert expected.items() <= row.items()


def test_numbers_that_are_not_finite_are_null_and_a_process_of_its_own_answers_by_json(tmp_path):
    def call(in_, out, delta, significance, seed):
        return {"eps": in_[0] + seed, "other": in_[0] * np.inf}

    request = {"audits": [[[2.0], [1.0]], [[-3.0], []]], "delta": 1e-3, "significance": 0.1}
    answers = peer_adapters.answer(call, {**request, "seed": 10})
    assert answers["epsilons"] == [{"eps": 12.0, "other": None}, {"eps": 8.0, "other": None}]
    assert len(answers["seconds"]) == 2
    rng = np.random.default_rng(4)
    first, second = rng.normal(1.5, 1.0, 90), rng.normal(0.0, 1.0, 80)
    request |= {"audits": [[first.tolist(), second.tolist()]], "seed": 0}
    place, answer = tmp_path / "request.json", tmp_path / "answer.json"
    place.write_text(json.dumps(request))
    words = [sys.executable, "-P", peers.ADAPTERS, "dpcanary", "split", place, answer]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    options = {"delta": 1e-3, "significance": 0.1, "threshold_rule": "split"}
    expected = estimate_epsilon(world0_scores=first, world1_scores=second, **options)
    assert read_json(answer)["epsilons"] == [{"epsilon_lower": expected.epsilon_lower}]


IN_, OUT = np.array([10.0, 11.0, 12.0, 10.5, 7.0, 13.0]), np.array([7.0, 8.0, 12.5, 7.9])


def asked(tool: str, name: str, in_: np.ndarray = IN_, out: np.ndarray = OUT) -> dict[str, object]:
    return peer_adapters.CALLS[tool, name]()(in_, out, 1e-5, 0.05, 7)


def test_tools_get_canaries_that_are_in_first(tools):
    auditor, split = tools.auditing.CanaryScoreAuditor, tools.auditing.Split
    bound = auditor.return_value.epsilon_clopper_pearson
    for name, chosen in (("", {}), (", Split", {"threshold_strategy": split.return_value})):
        assert asked("jax_privacy", f"clopper_pearson{name}") == {"epsilon": bound.return_value}
        assert auditor.call_args.args == (IN_, OUT)
        bound.assert_called_with(0.05, 1e-5, **chosen)
    split.assert_called_once_with(seed=7)
    bootstrap = tools.ndis_eps_lower_bound_with_ci
    assert asked("dpsgd-auditbench", "bootstrap") == {"eps": bootstrap.return_value}
    assert bootstrap.call_args.args == (IN_, OUT)
    assert {"delta": 1e-5, "alpha": 0.05}.items() <= bootstrap.call_args.kwargs.items()


def test_privacy_estimates_gets_the_counts_of_the_second_half(tools):
    """The first halves are apart, so the best threshold is between 8 and 10."""

    def compute_eps_lo(counts, delta, alpha, method):
        assert (delta, alpha) == (1e-5, 0.05)
        return counts["TP"] - counts["FP"] if method == "beta" else counts

    tools.configure_mock(AttackResults=dict, compute_eps_lo=compute_eps_lo)
    answer = asked("privacy-estimates", "joint-beta")
    assert answer == {"eps_lo": {"TP": 2, "FN": 1, "FP": 1, "TN": 1}}


def test_privacy_guard_gets_the_guesses_of_both_sides_or_scores_as_tables(tools):
    rng = np.random.default_rng(8)
    in_, out = rng.normal(1.0, 1.0, 45), rng.normal(0.0, 1.0, 35)
    labels = np.repeat([1, 0], [45, 35])[np.argsort(np.concatenate([in_, out]))]
    right = sum(labels[-10:]) + sum(1 - labels[:10])
    node = tools.FDPAnalysisNode
    answer = asked("PrivacyGuard", "FDPAnalysisNode", in_, out)
    assert answer == {"eps": node.return_value.run_analysis.return_value.eps}
    node.assert_called_once_with(m=80, c=right, c_cap=20, threshold=0.05, delta=1e-5)
    one_sample = {"num_bootstrap_resampling_times": 1}
    tables, node = tools.AggregateAnalysisInput, tools.AnalysisNode
    for name, settings in (("", {}), (", one bootstrap sample", one_sample)):
        answer = asked("PrivacyGuard", f"AnalysisNode{name}")
        result = node.return_value.run_analysis.return_value
        assert answer == {key: getattr(result, key) for key in ("eps", "eps_lb", "eps_cp")}
        node.assert_called_with(tables.return_value, delta=1e-5, n_users_for_eval=4, **settings)
        _, train, test, _ = tables.call_args.args
        assert (train["score"].tolist(), test["score"].tolist()) == (IN_.tolist(), OUT.tolist())
