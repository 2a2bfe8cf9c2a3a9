"""Paper scale: thousands of shards are planned in seconds."""

import os
from pathlib import Path

import pytest
import yaml
from running import SNAKEFILE, SNAKEMAKE, TINY, printed_by
from sampling import exhaustive


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_shards", "most_seconds"),
    [
        (1_000, 10),
        # Twenty on an idle machine; others may want the same cores.
        exhaustive((10_000, 60)),
    ],
)
def test_shards_are_planned_in_seconds(num_shards: int, most_seconds: float, tmp_path: Path):
    """A million models; processor seconds of a dry run."""
    runs_per_shard = 1_000_000 // num_shards
    audit = {**TINY["audits"]["steps"], "canary": "gradient", "runs_per_shard": runs_per_shard}
    config = {**TINY, "audits": {"large": {**audit, "num_runs": 1_000_000}}, "figures": {}}
    config["datasets"] = {"digits": TINY["datasets"]["digits"]}
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(config))
    command = [*SNAKEMAKE, "--dry-run", "--quiet", "rules", "--cores", "1"]
    before = os.times()
    printed = printed_by(
        [*command, "--snakefile", SNAKEFILE, "--configfile", "large.yaml"], tmp_path
    )
    seconds = os.times().children_user - before.children_user
    counts = dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)
    assert counts["train_shard"] == str(num_shards)
    assert int(counts["total"]) < num_shards + 20
    assert seconds < most_seconds
