"""The comparison with other tools: its page says what was measured, and its adapters read right.

The tools are not installed here. Stand-ins with their names take the calls.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks import peer_adapters, peers
from dpcanary import estimate_epsilon
from dpcanary.files import read_json

ROOT = Path(__file__).parents[2]
RESULTS = read_json(peers.RESULTS)


def module(monkeypatch, name: str, **content) -> None:
    """Puts a stand-in in the place of a module, and of the packages above it."""
    for end in range(1, name.count(".") + 2):
        part = ".".join(name.split(".")[:end])
        if part not in sys.modules:
            monkeypatch.setitem(sys.modules, part, ModuleType(part))
    vars(sys.modules[name]).update(content)


def test_a_page_keeps_its_text_between_tables_and_needs_a_place_for_each():
    page = peers.PAGE.read_text()
    changed = page.replace("<!-- peers: scores -->\n", "<!-- peers: scores -->\nolder\n")
    assert peers.filled(changed + "end", RESULTS) == page + "end"
    with pytest.raises(ValueError, match="one-demo"):
        peers.filled(page.replace("<!-- peers: one-demo -->", ""), RESULTS)


def test_catalogue_adapters_and_chart_agree():
    named = {(estimator.tool, estimator.call) for estimator in peers.ESTIMATORS}
    assert named == {*peer_adapters.CALLS}
    assert {tool.name for tool in peers.TOOLS} == {tool for tool, _ in named}
    labels = [estimator.label for estimator in peers.ESTIMATORS]
    assert len({*labels}) == len(labels)
    assert {*peers.CHARTED.values()} <= {*labels}


def test_every_estimator_was_asked_in_every_setting():
    found = {(row["label"], row["cell"]): row["audits"] for row in RESULTS["rows"]}
    for cell in RESULTS["cells"]:
        for estimator in peers.ESTIMATORS:
            if estimator.game != cell["game"] or "not_run" in RESULTS["tools"][estimator.tool]:
                continue
            wanted = min(estimator.audits[1], 1)
            if cell["mu"] is not None:
                wanted = estimator.audits[peers.SIZES.index(cell["size"])]
            assert found.get((estimator.label, cell["name"]), 0) == wanted


def test_valid_rules_of_ours_are_not_above_the_truth_too_often():
    """And the one that is marked as not valid need not be."""
    ours = [row for row in RESULTS["rows"] if row["label"].startswith("dpcanary")]
    assert len(ours) > 20
    for row in ours:
        if "in_sample" not in row["label"]:
            assert not peers.is_too_often(row), row


@pytest.mark.parametrize("game", [peers.MANY, peers.ONE])
def test_scores_are_those_of_the_stored_hash(tmp_path, game):
    [cell] = [c for c in peers.simulated_cells() if (c.game, c.mu, c.size) == (game, 3.0, 250)]
    digest = peers.write_request(cell, tmp_path, ROOT)
    [stored] = [c for c in RESULTS["cells"] if c["name"] == cell.name]
    assert digest == stored["sha256"]
    text = (tmp_path / "scores" / f"{cell.name}.json").read_bytes()
    assert hashlib.sha256(text).hexdigest().startswith(digest)
    audits = json.loads(text)["audits"]
    worlds = [np.concatenate([audit[world] for audit in audits]) for world in (0, 1)]
    assert [scores.mean() for scores in worlds] == pytest.approx([3.0, 0.0], abs=0.02)
    assert {len(first) + len(second) for first, second in audits} == {500}
    sizes = {len(first) for first, _ in audits}
    assert sizes == {250} if game == peers.MANY else len(sizes) > 20


@pytest.mark.parametrize(
    ("above", "audits", "too_often"),
    [(0, 30, False), (1, 1, False), (2, 3, True), (25, 300, True), (20, 300, False)],
)
def test_intervals_are_those_of_clopper_and_pearson_and_too_often_is_beyond_doubt(
    above, audits, too_often
):
    expected = binomtest(above, audits).proportion_ci(0.95, method="exact")
    assert peers.share_interval(above, audits) == pytest.approx(tuple(expected), abs=1e-12)
    assert peers.is_too_often({"above": above, "audits": audits}) is too_often


def test_a_row_counts_what_is_above_the_truth():
    cell = peers.Cell("some", peers.MANY, truth=2.0, audits=5)
    numbers = [1.0, 2.000001, 2.1, None, 7.0]
    answer = {"epsilons": [{"epsilon_lower": n} for n in numbers], "seconds": [3, 1, 2, 5, 4]}
    row = peers.row(peers.ESTIMATORS[0], cell, answer)
    expected = {"audits": 5, "median": 2.0, "above": 2, "missing": 1, "seconds": 3.0}
    assert expected.items() <= row.items()


def test_numbers_that_are_not_finite_are_null():
    def call(in_, out, delta, significance, seed):
        return {"eps": in_[0] + seed, "other": in_[0] * np.inf}

    request = {"audits": [[[2.0], [1.0]], [[-3.0], []]], "delta": 0.1, "significance": 0.2}
    found = peer_adapters.answer(call, {**request, "seed": 10})
    assert found["epsilons"] == [{"eps": 12.0, "other": None}, {"eps": 8.0, "other": None}]
    assert len(found["seconds"]) == 2


def test_a_process_of_its_own_answers_by_json(tmp_path):
    rng = np.random.default_rng(4)
    first, second = rng.normal(1.5, 1.0, 90), rng.normal(0.0, 1.0, 80)
    request = {"audits": [[first.tolist(), second.tolist()]], "delta": 1e-3, "significance": 0.1}
    place, answer = tmp_path / "request.json", tmp_path / "answer.json"
    place.write_text(json.dumps({**request, "seed": 0}))
    words = [sys.executable, "-P", peers.ADAPTERS, "dpcanary", "split", place, answer]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    expected = estimate_epsilon(
        world0_scores=first, world1_scores=second, delta=1e-3, significance=0.1,
        threshold_rule="split",
    )  # fmt: skip
    assert read_json(answer)["epsilons"] == [{"epsilon_lower": expected.epsilon_lower}]


def test_jax_privacy_gets_canaries_that_are_in_first(monkeypatch):
    class CanaryScoreAuditor:
        def __init__(self, in_, out):
            self.scores = in_, out

        def epsilon_clopper_pearson(self, significance, delta, threshold_strategy=None):
            assert (significance, delta) == (0.05, 1e-5)
            [in_], [out] = self.scores
            return 10 * in_ + out + (threshold_strategy or 0)

    auditing = SimpleNamespace(CanaryScoreAuditor=CanaryScoreAuditor, Split=lambda seed: seed)
    module(monkeypatch, "jax_privacy", auditing=auditing)
    scores = np.array([3.0]), np.array([1.0])
    for name, expected in (("clopper_pearson", 31.0), ("clopper_pearson, Split", 31.25)):
        call = peer_adapters.CALLS["jax_privacy", name]()
        assert call(*scores, 1e-5, 0.05, 0.25) == {"epsilon": expected}


def test_privacy_estimates_gets_the_counts_of_the_second_half(monkeypatch):
    """The first halves are apart, so the best threshold is between 8 and 10."""

    def compute_eps_lo(counts, delta, alpha, method):
        assert (delta, alpha) == (1e-5, 0.05)
        return counts["TP"] - counts["FP"] if method == "beta" else counts

    module(monkeypatch, "privacy_estimates", AttackResults=dict, compute_eps_lo=compute_eps_lo)
    in_, out = np.array([10.0, 11.0, 12.0, 10.5, 7.0, 13.0]), np.array([7.0, 8.0, 12.5, 7.9])
    found = peer_adapters.privacy_estimates("joint-beta")(in_, out, 1e-5, 0.05, 0)
    assert found == {"eps_lo": {"TP": 2, "FN": 1, "FP": 1, "TN": 1}}


def test_privacy_guard_gets_the_guesses_of_both_sides(monkeypatch):
    class FDPAnalysisNode:
        def __init__(self, m, c, c_cap, threshold, delta):
            assert (threshold, delta) == (0.05, 1e-5)
            self.found = (m, c, c_cap)

        def run_analysis(self):
            return SimpleNamespace(eps=self.found)

    module(
        monkeypatch, "privacy_guard.analysis.mia.fdp_analysis_node",
        FDPAnalysisNode=FDPAnalysisNode,
    )  # fmt: skip
    rng = np.random.default_rng(8)
    in_, out = rng.normal(1.0, 1.0, 45), rng.normal(0.0, 1.0, 35)
    scores, labels = np.concatenate([in_, out]), np.repeat([1, 0], [45, 35])
    order = np.argsort(scores)
    right = sum(labels[order[-10:]]) + sum(1 - labels[order[:10]])
    call = peer_adapters.CALLS["PrivacyGuard", "FDPAnalysisNode"]()
    assert call(in_, out, 1e-5, 0.05, 0) == {"eps": (80, right, 20)}


def test_privacy_guard_gives_three_numbers_of_one_call(monkeypatch):
    class AnalysisNode:
        def __init__(self, given, delta, n_users_for_eval, num_bootstrap_resampling_times=1000):
            self.scores = given
            self.number = (n_users_for_eval, num_bootstrap_resampling_times)

        def run_analysis(self):
            train, test = self.scores
            return SimpleNamespace(eps=train.sum(), eps_lb=test.sum(), eps_cp=self.number)

    module(
        monkeypatch, "privacy_guard.analysis.mia.aggregate_analysis_input",
        AggregationType=SimpleNamespace(NONE="none"),
        AggregateAnalysisInput=lambda kind, train, test, key: (train["score"], test["score"]),
    )  # fmt: skip
    module(monkeypatch, "privacy_guard.analysis.mia.analysis_node", AnalysisNode=AnalysisNode)
    for name, samples in (("AnalysisNode", 1000), ("AnalysisNode, one bootstrap sample", 1)):
        call = peer_adapters.CALLS["PrivacyGuard", name]()
        found = call(np.array([1.0, 2.0, 4.0]), np.array([0.5, 0.0]), 1e-5, 0.05, 0)
        assert found == {"eps": 7.0, "eps_lb": 0.5, "eps_cp": (2, samples)}


def test_a_tool_that_no_registry_has_needs_a_clone(tmp_path):
    [tool] = [tool for tool in peers.TOOLS if tool.clone]
    with pytest.raises(OSError, match="no clone"):
        peers.interpreter(tool, tmp_path, {}, "pip")
    found = peers.interpreter(tool, tmp_path, {tool.name: "/some/where"}, "pip")
    assert found == (sys.executable, "/some/where/src")
