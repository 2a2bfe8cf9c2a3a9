"""Draws the observations of one shard of a worst-case audit."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpcanary.canaries.worst_case import draw_final_sums, draw_transcript_scores
from dpcanary.files import read_json
from dpcanary.observations import make_shard, write_shard
from dpcanary.program import run
from dpcanary.stages import TrainingStage
from dpcanary.vocabulary import Score


def main(argv: Sequence[str]) -> None:
    """Draws runs first, ..., first + num_runs - 1 and writes the shard file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=TrainingStage.model_validate_json, required=True)
    parser.add_argument("--noise", type=Path, required=True)
    parser.add_argument("--first-run", type=int, required=True)
    parser.add_argument("--num-runs", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    stage: TrainingStage = args.settings
    noise_multiplier = read_json(args.noise)["noise_multiplier"]
    runs = range(args.first_run, args.first_run + args.num_runs)
    start = time.perf_counter()
    draw = draw_transcript_scores if stage.score is Score.TRANSCRIPT else draw_final_sums
    observation = draw(
        runs=runs,
        sample_rate=stage.sample_rate,
        noise_multiplier=noise_multiplier,
        record_steps=stage.record_steps,
        seed=stage.seed,
    )
    shard = make_shard(
        stage,
        runs=runs,
        observation=observation,
        test_accuracy=np.full(len(runs), np.nan, dtype=np.float32),
        noise_multiplier=noise_multiplier,
        inputs={},
        device="cpu",
        seconds=time.perf_counter() - start,
    )
    write_shard(args.output, shard)


if __name__ == "__main__":
    run(main)
