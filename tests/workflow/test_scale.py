"""Paper scale: thousands of shards are planned in seconds."""

import os

import pytest
import yaml
from running import SNAKEFILE, SNAKEMAKE, printed_by

NUM_SHARDS = 10_000
CONFIG = {
    "experiment": "large",
    "delta": 1e-5,
    "datasets": {"digits": {"source": "digits", "num_records": 500}},
    "audits": {
        "large": {
            "canary": "gradient",
            "dataset": "digits",
            "sample_rate": 0.25,
            "target_epsilon": 10.0,
            "num_steps": 500,
            "num_runs": 100 * NUM_SHARDS,
            "runs_per_shard": 100,
        }
    },
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """What a dry run of a million runs prints, and the processor seconds that it takes."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "large.yaml").write_text(yaml.safe_dump(CONFIG))
    command = [*SNAKEMAKE, "--dry-run", "--quiet", "rules", "--cores", "1"]
    before = os.times()
    printed = printed_by([*command, "--snakefile", SNAKEFILE, "--configfile", "large.yaml"], folder)
    return printed, os.times().children_user - before.children_user


def test_ten_thousand_shards_are_planned_in_seconds(planned):
    """Twenty on an idle machine; others may want the same cores."""
    printed, seconds = planned
    counts = dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)
    assert counts["train_shard"] == str(NUM_SHARDS)
    assert seconds < 60
