"""Paper scale: thousands of shards are planned in seconds."""

import os

import pytest
import yaml
from running import SNAKEFILE, SNAKEMAKE, printed_by


def config(num_shards: int, runs_per_shard: int) -> dict:
    """An audit of so many shards."""
    audit = {
        "canary": "gradient",
        "dataset": "digits",
        "sample_rate": 0.25,
        "target_epsilon": 10.0,
        "num_steps": 500,
        "num_runs": runs_per_shard * num_shards,
        "runs_per_shard": runs_per_shard,
    }
    return {
        "experiment": "large",
        "delta": 1e-5,
        "datasets": {"digits": {"source": "digits", "num_records": 500}},
        "audits": {"large": audit},
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_shards", "runs_per_shard", "most_seconds"),
    [
        pytest.param(1_000, 1_000, 10, id="a million models in a thousand jobs"),
        # Twenty on an idle machine; others may want the same cores.
        pytest.param(10_000, 100, 60, id="in ten thousand"),
    ],
)
def test_shards_are_planned_in_seconds(num_shards, runs_per_shard, most_seconds, tmp_path):
    """Processor seconds of a dry run."""
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(config(num_shards, runs_per_shard)))
    command = [*SNAKEMAKE, "--dry-run", "--quiet", "rules", "--cores", "1"]
    command += ["--snakefile", SNAKEFILE, "--configfile", "large.yaml"]
    before = os.times()
    printed = printed_by(command, tmp_path)
    seconds = os.times().children_user - before.children_user
    counts = dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)
    assert counts["train_shard"] == str(num_shards)
    assert int(counts["total"]) < num_shards + 20
    assert seconds < most_seconds
