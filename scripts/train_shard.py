"""Trains the models of one shard and records what the adversary observes."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from dpcanary.canaries import read_canary
from dpcanary.files import read_json
from dpcanary.observations import make_shard, write_shard
from dpcanary.program import progress, run
from dpcanary.splits import read_split
from dpcanary.stages import TrainingStage
from dpcanary.training.devices import chosen_device
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.inputs import DPSGD, Records


def main(argv: Sequence[str]) -> None:
    """Trains runs first, ..., first + num_runs - 1 and writes the shard file."""
    args = parsed(argv)
    torch.set_num_threads(args.threads)
    stage: TrainingStage = args.settings
    noise_multiplier = read_json(args.noise)["noise_multiplier"]
    device = chosen_device(args.device)
    runs = range(args.first_run, args.first_run + args.num_runs)
    start = time.perf_counter()
    placed = read_canary(args.canary)
    with progress(len(runs) * stage.record_steps[-1], "model-step") as bar:
        result = train_ensemble(
            records=Records.from_split(read_split(args.data), target=placed.target),
            canary=placed.canary,
            dpsgd=DPSGD.from_stage(stage, noise_multiplier=noise_multiplier),
            runs=runs,
            seed=stage.seed,
            device=device,
            num_threads=args.threads,
            on_progress=bar.update,
        )
    shard = make_shard(
        stage,
        runs=runs,
        observation=result.observations,
        test_accuracy=result.test_accuracy,
        noise_multiplier=noise_multiplier,
        inputs={"data": args.data, "canary": args.canary},
        device=str(device),
        seconds=time.perf_counter() - start,
    )
    write_shard(args.output, shard)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=TrainingStage.model_validate_json, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--canary", type=Path, required=True)
    parser.add_argument("--noise", type=Path, required=True)
    parser.add_argument("--first-run", type=int, required=True)
    parser.add_argument("--num-runs", type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
