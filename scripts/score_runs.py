"""Pools an audit's shards, checks them, and turns observations into scores."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.adjacency import world_of
from dpcanary.canaries import read_canary
from dpcanary.files import write_arrays
from dpcanary.observations import check_origin, pool_shards
from dpcanary.program import run
from dpcanary.scores import scores_of
from dpcanary.stages import ScoringStage


def main(argv: Sequence[str]) -> None:
    """Writes the scores of both worlds, shape (repeats, runs per world, steps) each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audit", required=True)
    parser.add_argument("--settings", type=ScoringStage.model_validate_json, required=True)
    parser.add_argument("--canary", type=Path, help="canary file; not for worst_case")
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    stage: ScoringStage = args.settings
    pooled = pool_shards(args.shards, num_runs=stage.num_runs * stage.num_repeats)
    training = stage.training
    check_origin(pooled, training, canary=args.canary, place=args.shards[0].parent)
    placed = None if args.canary is None else read_canary(args.canary)
    scores = scores_of(pooled, training, placed)
    by_repeat = scores.reshape(stage.num_repeats, stage.num_runs, -1)
    # num_runs is even, so every repeat begins with world 0.
    world = world_of(pooled.run[: stage.num_runs])
    header = {
        "audit": args.audit,
        "canary": training.canary,
        "score": training.score,
        "sample_rate": training.sample_rate,
        "noise_multiplier": pooled.header["noise_multiplier"],
        "seconds": pooled.header["seconds"],
    }
    arrays = {
        "step": pooled.step,
        "world0_scores": by_repeat[:, world == 0],
        "world1_scores": by_repeat[:, world == 1],
        "test_accuracy": pooled.test_accuracy.reshape(stage.num_repeats, stage.num_runs),
    }
    write_arrays(args.output, header=header, arrays=arrays)


if __name__ == "__main__":
    run(main)
