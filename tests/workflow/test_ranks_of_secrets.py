"""Slots that hold secrets, by the whole workflow: the shipped config in miniature."""

import numpy as np
import pandas as pd
import pytest
import yaml
from running import DPCANARY, ROOT, Project, printed_by
from scipy.stats import rankdata

from dpcanary.data.observations import read_shard
from dpcanary.estimation import estimate_epsilon_from_ranks
from tests.statistics.simulated import allowed

REPEATS = 25
SWEPT = {
    "secrets": {"num_slots": [3, 40], "num_candidates": 20},
    "values": {"num_slots": 40, "num_candidates": [2, 50]},
    "copies": {"num_slots": 40, "num_copies": [1, 3], "num_candidates": 20},
}


def miniature() -> dict:
    content = yaml.safe_load((ROOT / "config/secrets.yaml").read_text())
    assert content["audits"].keys() == SWEPT.keys()
    tiny = {"target_epsilon": [4.0], "num_repeats": REPEATS, "runs_per_shard": 10}
    for name, audit in content["audits"].items():
        assert all(isinstance(audit[k], list) for k, v in SWEPT[name].items() if type(v) is list)
        audit |= tiny | SWEPT[name]
    content["audits"]["labels"] = {
        "canary": "random_label", "dataset": "digits", "sample_rate": 0.5, "target_epsilon": 4.0,
        "num_steps": 4, "num_slots": 10, "num_runs": 2, "num_repeats": 2,
    }  # fmt: skip
    datasets = {"digits": {"source": "digits", "num_records": 60}}
    return {**content, "experiment": "tiny", "datasets": datasets}


@pytest.mark.long
def test_ranks_of_secrets_become_bounds_a_figure_and_a_report(tmp_path):
    project = Project.new(tmp_path / "project", miniature())
    printed = project.run()
    assert "secret" in printed
    summary = pd.read_csv(project.results / "summary.tsv", sep="\t", comment="#")
    labels = summary[summary["sweep"] == "labels"]
    assert len(labels) == 2 * 2
    assert {*labels["num_candidates"]} == {10}  # the classes of digits
    assert labels[["exposure", "epsilon_lower", "test_accuracy"]].notna().all(axis=None)
    summary = summary[summary["sweep"] != "labels"]
    assert len(summary) == 6 * REPEATS * 2
    assert {*summary["threshold_rule"]} == {"mahloujifar", "bits"}
    accounted = summary.groupby("num_copies")["epsilon_upper_substitute"].unique()
    assert accounted[1].tolist() == [pytest.approx(4.0, abs=1e-3)]
    assert accounted[3].item() > 12
    above = summary["epsilon_lower"] > summary["epsilon_upper_substitute"]
    shares = above.groupby([summary["audit"], summary["threshold_rule"]]).mean()
    assert shares.max() <= allowed(REPEATS)

    # From the observations of one audit, without the code between them and its bounds.
    [audit] = summary.query("num_copies == 3")["audit"].unique()
    shards = [read_shard(path) for path in sorted((project.results / "shards" / audit).iterdir())]
    assert [len(shard.run) for shard in shards] == [10, 10, 5]
    sums = np.concatenate([shard.observation for shard in shards])
    truth = np.concatenate([shard.world for shard in shards])
    ranks = rankdata(-sums[:, 0].astype(float), method="max", axis=-1)
    own = np.take_along_axis(ranks, truth[..., None].astype(int), axis=-1)[..., 0]
    rows = summary.query("audit == @audit and threshold_rule == 'bits'").set_index("repeat")
    for repeat in range(REPEATS):
        estimate = estimate_epsilon_from_ranks(
            ranks=own[repeat].astype(int), num_candidates=20, delta=1e-6, rule="bits"
        )
        assert rows.loc[repeat, "epsilon_lower"] == pytest.approx(estimate.epsilon_lower, abs=1e-9)
    assert rows["epsilon_lower"].mean() > 1

    table = pd.read_csv(project.results / "figures/secrets.tsv", sep="\t", comment="#")
    assert {*table["axis"]} == {"num_slots", "num_candidates", "num_copies"}
    of_rule = summary[summary["threshold_rule"] == "mahloujifar"]  # the first of the config
    [point] = table.query("sweep == 'copies' and value == 3")["epsilon"]
    assert point == pytest.approx(of_rule.query("num_copies == 3")["epsilon_lower"].mean())
    printed_by([*DPCANARY, "report", "results/tiny", "--output", "page.html"], project.folder)
    page = (project.folder / "page.html").read_text()
    assert "an attacker ranked the values of each" in " ".join(page.split())
