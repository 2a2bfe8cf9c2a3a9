"""Pools an audit's shards, checks them, and turns observations into scores."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.files import write_arrays
from dpcanary.observations import shard_path
from dpcanary.pooling import pool_scores
from dpcanary.program import run
from dpcanary.stages import ScoringStage


def main(argv: Sequence[str]) -> None:
    """Writes the scores of both worlds, shape (repeats, runs per world, steps) each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audit", required=True)
    parser.add_argument("--settings", type=ScoringStage.model_validate_json, required=True)
    parser.add_argument("--canary", type=Path, help="canary file; not for worst_case")
    parser.add_argument("--shards", type=Path, required=True, help="their folder")
    parser.add_argument("--num-shards", type=int, required=True, help="others there are stale")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    training = args.settings.training
    paths = [shard_path(args.shards, index) for index in range(args.num_shards)]
    scores = pool_scores(paths, args.settings, canary=args.canary)
    header = {
        "audit": args.audit,
        "canary": training.canary,
        "score": training.score,
        "sample_rate": training.sample_rate,
        "noise_multiplier": scores.noise_multiplier,
        "seconds": scores.seconds,
    }
    arrays = {
        "step": scores.step,
        "world0_scores": scores.world0_scores,
        "world1_scores": scores.world1_scores,
        "test_accuracy": scores.test_accuracy,
    }
    write_arrays(args.output, header=header, arrays=arrays)


if __name__ == "__main__":
    run(main)
