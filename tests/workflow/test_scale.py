"""Paper scale: thousands of shards are planned in seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
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
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "rules", "--cores", "1"]
    before = os.times()
    done = subprocess.run(
        [*command, "--snakefile", str(ROOT / "Snakefile"), "--configfile", "large.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    after = os.times()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, after.children_user - before.children_user


def test_ten_thousand_shards_are_planned_in_seconds(planned):
    """Twenty on an idle machine; others may want the same cores."""
    printed, seconds = planned
    counts = dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)
    assert counts["train_shard"] == str(NUM_SHARDS)
    assert seconds < 60
