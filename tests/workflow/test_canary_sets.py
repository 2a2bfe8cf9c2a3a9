"""Sets of canaries in miniature: optimised once, used with and without privacy."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from miniatures import cifar10
from running import Project

from dpcanary.data.canaries import read_canaries

SHARED = {
    "canary": ["random_record", "loss", "metagradient"], "adjacency": "add_remove",
    "dataset": "images", "model": "resnet9", "width": 2, "num_steps": 4, "record_every": 2,
    "num_slots": 8, "num_runs": 1, "num_repeats": 2, "sample_rate": 1.0, "seed": 1,
    "metagradient": {"num_metasteps": 2, "num_steps": 3, "batch_size": 6, "width": 2},
}  # fmt: skip
PRETRAINING = {"num_steps": 3, "batch_size": 4}
PRIVATE = {**SHARED, "noise_multiplier": 1.0}
# With a reference model, which starts there too.
OTHER = {"canary": "mislabeled", "adjacency": "substitute"}
CONFIG = {
    "experiment": "tiny", "delta": 1e-5, "threshold_rules": ["mahloujifar", "steinke"],
    "audits": {
        "sgd": {**SHARED, "noise_multiplier": 0.0},
        "dp": {**PRIVATE, "augmentation_multiplicity": 2},
        "tuned": {**PRIVATE, "pretraining": PRETRAINING},
        "tuned_other": {**PRIVATE, **OTHER, "pretraining": {**PRETRAINING, "dataset": "more"}},
    },
    "figures": {
        "of_sgd": {"kind": "canary_sets", "sweeps": ["sgd"]},
        "of_dp": {"kind": "canary_sets", "sweeps": ["dp"]},
        "of_tuned": {"kind": "canary_sets", "sweeps": ["tuned"]},
        "steps": {"kind": "epsilon_by_step", "sweeps": ["sgd"]},
    },
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Project:
    images = {"source": "cifar10", "files": [str(cifar10(tmp_path))], "num_records": 20}
    datasets = {"images": {**images, "num_test": 10}}
    datasets["more"] = {**datasets["images"], "num_records": 40}
    return Project.new(tmp_path / "project", {**CONFIG, "datasets": datasets})


@pytest.mark.long
def test_more_metasteps_optimise_again_for_all_sweeps_and_leave_other_sets(project):
    plan = project.plan()
    assert (plan.jobs["optimise_canaries"], plan.jobs["pretrain"]) == (1, 2)
    project.pretend()
    changed = yaml.safe_load((project.folder / "experiment.yaml").read_text())
    del changed["audits"]["tuned"], changed["audits"]["tuned_other"], changed["figures"]["of_tuned"]
    for audit in changed["audits"].values():
        audit["metagradient"]["num_metasteps"] = 3
    project.write(changed)
    jobs = project.plan().jobs
    expected = {"optimise_canaries": 1, "craft_canaries": 2, "train_shard": 2}
    assert jobs.items() >= expected.items()


@pytest.mark.exhaustive
def test_canary_sets_with_and_without_privacy(project):
    project.run()
    [shared] = project.results.glob("optimised/*.npz")
    optimised = read_canaries(shared)
    for sweep in ("sgd", "dp"):
        random = read_canaries(project.results / f"canaries/{sweep}-random_record.npz")
        own = read_canaries(project.results / f"canaries/{sweep}-metagradient.npz")
        sets = (own.canaries, optimised.canaries, random.canaries)
        for crafted, other, start in zip(*sets, strict=True):
            np.testing.assert_array_equal(crafted.features, other.features)
            assert crafted.target == start.target
            assert (crafted.features != start.features).any()

    summary = pd.read_csv(project.results / "summary.tsv", sep="\t")
    of_sgd = summary[summary["sweep"] == "sgd"]
    assert np.isinf(of_sgd["epsilon_upper_add_remove"]).all()
    assert of_sgd["max_grad_norm"].isna().all()
    assert (summary.loc[summary["sweep"] == "dp", "max_grad_norm"] == 1).all()
    pretrained = summary.groupby("sweep")["pretraining"].first()
    assert (pretrained["tuned"], pretrained["tuned_other"]) == ("auxiliary records", "more")
    assert pretrained[["sgd", "dp"]].isna().all()
    logs = "".join(path.read_text() for path in project.results.glob("logs/pretrain/*.log"))
    assert len(re.findall("left out [2-9][0-9] records that are private or test", logs)) == 1
    table = pd.read_csv(project.results / "figures/of_sgd.tsv", sep="\t")
    assert {*table["measure"]} == {"loss_gap", "mahloujifar", "steinke"}
    assert {*table["step"]} == {2, 4}
