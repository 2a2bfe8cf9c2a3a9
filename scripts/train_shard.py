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
from dpcanary.training.ensemble import EnsembleResult, train_ensemble
from dpcanary.training.inputs import Records
from dpcanary.training.models import mechanism_of, module_of


def main(argv: Sequence[str]) -> None:
    """Trains runs first, ..., first + num_runs - 1 and writes the shard file."""
    args = parsed(argv)
    noise_multiplier = read_json(args.noise)["noise_multiplier"]
    device = chosen_device(args.device)
    start = time.perf_counter()
    result = trained(args, noise_multiplier, device)
    shard = make_shard(
        args.settings,
        runs=range(args.first_run, args.first_run + args.num_runs),
        observation=result.observations,
        test_accuracy=result.test_accuracy,
        noise_multiplier=noise_multiplier,
        inputs={"data": args.data, "canary": args.canary},
        device=str(device),
        seconds=time.perf_counter() - start,
    )
    write_shard(args.output, shard)


def trained(
    args: argparse.Namespace, noise_multiplier: float, device: torch.device
) -> EnsembleResult:
    """What the runs showed."""
    stage: TrainingStage = args.settings
    data, placed = read_split(args.data), read_canary(args.canary)
    with progress(args.num_runs * stage.num_steps, "model-step") as bar:
        return train_ensemble(
            module=module_of(stage, shape=data.features.shape[1:], num_classes=data.num_classes),
            records=Records.from_split(data, target=placed.target),
            canary=placed.canary,
            dpsgd=mechanism_of(
                stage, record_steps=stage.record_steps, noise_multiplier=noise_multiplier
            ),
            runs=range(args.first_run, args.first_run + args.num_runs),
            seed=stage.seed,
            device=device,
            initialisation=stage.initialisation,
            precision=stage.precision,
            num_threads=args.threads,
            runs_at_once=args.runs_at_once,
            on_progress=bar.update,
        )


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=TrainingStage.model_validate_json, required=True)
    for name in ("--data", "--canary", "--noise", "--output"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--first-run", type=int, required=True)
    parser.add_argument("--num-runs", type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs-at-once", type=int, default=0, help="0: as many as fit")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
