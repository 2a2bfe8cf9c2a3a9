"""Time and peak memory of pooling an audit's shards, up to a million runs.

Run as `python -m benchmarks.pooling [--shards 100 1000 10000]`. A shard has 100 runs. Each run has
the logits of two records in 10 classes at 20 recorded steps, which is the largest observation of a
linear head. benchmarks/README.md says what is measured.
"""

import argparse
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

import numpy as np

from dpcanary.core.program_messages import progress
from dpcanary.data.canaries import CanarySet, write_canaries
from dpcanary.data.observations import (
    Shard,
    hashes_of,
    parity,
    shard_header,
    shard_path,
    write_shard,
)
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.scoring.pooling import pool_scores
from dpcanary.scoring.scoring_settings import ScoringStage
from dpcanary.training import InputCanary

RUNS_PER_SHARD, NUM_STEPS, NUM_CLASSES = 100, 20, 10


def stage_of(num_shards: int) -> ScoringStage:
    """The settings of `score_runs`."""
    audit = {
        "canary": "mislabeled",
        "dataset": "digits",
        "sample_rate": 1.0,
        "noise_multiplier": 2.0,
        "num_steps": NUM_STEPS,
        "record_every": 1,
        "num_runs": num_shards * RUNS_PER_SHARD,
        "runs_per_shard": RUNS_PER_SHARD,
    }
    datasets = {"digits": {"source": "digits", "num_records": 100}}
    config = {"experiment": "pooling", "delta": 1e-5, "datasets": datasets, "audits": {"a": audit}}
    return parse_experiment(config).stage(ScoringStage, audit="a")


def write_shards(folder: Path, stage: ScoringStage, num_shards: int) -> Path:
    """Writes random shards, and returns their canary file."""
    canaries, rng = folder / "canaries.npz", np.random.default_rng(0)
    write_canaries(canaries, CanarySet((InputCanary(np.zeros(64, np.float32), 1, 0),), (0,)))
    size = (RUNS_PER_SHARD, NUM_STEPS, 1, 2, NUM_CLASSES)
    observation = rng.standard_normal(size, np.float32)
    header = shard_header(
        settings=stage.told,
        noise_multiplier=2.0,
        inputs=hashes_of({"canaries": canaries}),
        device="cpu",
        seconds=1.0,
    )
    with progress(num_shards, "shard") as bar:
        for index in range(num_shards):
            runs = index * RUNS_PER_SHARD + np.arange(RUNS_PER_SHARD)
            shard = Shard(
                header=header,
                run=runs,
                world=parity(runs)[:, None].astype(np.uint8),
                step=np.arange(1, NUM_STEPS + 1),
                observation=observation,
                test_accuracy=np.full(RUNS_PER_SHARD, 0.5, np.float32),
            )
            write_shard(shard_path(folder, index), shard)
            bar.update(1)
    return canaries


def pooled(folder: Path, num_shards: int) -> tuple[float, int, int]:
    """Seconds, growth of the peak in bytes, and bytes of the result."""
    stage = stage_of(num_shards)
    paths = [shard_path(folder, index) for index in range(num_shards)]
    unit = 1 if sys.platform == "darwin" else 1024
    before, start = getrusage(RUSAGE_SELF).ru_maxrss, perf_counter()
    names = {"audit": "a", "canary": "mislabeled", "score": "logit_difference"}
    scores = pool_scores(paths, stage, canaries=folder / "canaries.npz", names=names)
    end, peak = perf_counter(), getrusage(RUSAGE_SELF).ru_maxrss
    held = (scores.scores, scores.world, scores.test_accuracy)
    return end - start, unit * (peak - before), sum(array.nbytes for array in held)


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pooling", description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[100, 1000, 10_000])
    options = parser.parse_args(argv)
    print(f"{'runs':>10}{'files':>10}{'seconds':>10}{'peak':>10}{'scores':>10}")
    with tempfile.TemporaryDirectory() as name:
        folder, most = Path(name), max(options.shards)
        for num_shards in options.shards:
            # A shard holds the settings of its audit, but not the number of runs.
            if num_shards == options.shards[0]:
                write_shards(folder, stage_of(most), most)
            size = sum(shard_path(folder, index).stat().st_size for index in range(num_shards))
            with get_context("spawn").Pool(1) as pool:  # a process has one peak
                seconds, peak, held = pool.apply(pooled, (folder, num_shards))
            sizes = "".join(f"{size / 1e6:>7.0f} MB" for size in (peak, held))
            runs = num_shards * RUNS_PER_SHARD
            print(f"{runs:>10,}{size / 1e6:>7.0f} MB{seconds:>10.1f}{sizes}", flush=True)


if __name__ == "__main__":
    main()
