"""Trains the models of one shard and records what the adversary observes."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from dpcanary.canaries import PlacedCanary, read_canary
from dpcanary.errors import InputError
from dpcanary.files import read_json
from dpcanary.observations import make_shard, write_shard
from dpcanary.program import progress, run
from dpcanary.splits import SplitDataset, read_split
from dpcanary.stages import TrainingStage
from dpcanary.training.ensemble import DPSGD, EnsembleResult, Records, train_ensemble


def main(argv: Sequence[str]) -> None:
    """Trains runs first, ..., first + num_runs - 1 and writes the shard file."""
    args = parsed(argv)
    torch.set_num_threads(args.threads)
    stage: TrainingStage = args.settings
    noise_multiplier = read_json(args.noise)["noise_multiplier"]
    device = chosen_device(args.device)
    runs = range(args.first_run, args.first_run + args.num_runs)
    start = time.perf_counter()
    result = train(
        stage,
        noise_multiplier=noise_multiplier,
        data=read_split(args.data),
        placed=read_canary(args.canary),
        runs=runs,
        device=device,
        num_threads=args.threads,
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


def chosen_device(name: str) -> torch.device:
    """The device of this name; `auto` takes a GPU where there is one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("device is cuda, but PyTorch finds no GPU; set device to cpu or auto")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def train(
    stage: TrainingStage,
    *,
    noise_multiplier: float,
    data: SplitDataset,
    placed: PlacedCanary,
    runs: range,
    device: torch.device,
    num_threads: int,
) -> EnsembleResult:
    """Trains the runs, with a progress bar in model-steps."""
    records = Records(
        features=data.features,
        labels=data.labels,
        test_features=data.test_features,
        test_labels=data.test_labels,
        num_classes=data.num_classes,
        target=placed.target,
    )
    dpsgd = DPSGD(
        sample_rate=stage.sample_rate,
        noise_multiplier=noise_multiplier,
        max_grad_norm=stage.max_grad_norm,
        learning_rate=stage.learning_rate,
        record_steps=stage.record_steps,
    )
    with progress(len(runs) * stage.record_steps[-1], "model-step") as bar:
        return train_ensemble(
            records=records,
            canary=placed.canary,
            dpsgd=dpsgd,
            runs=runs,
            seed=stage.seed,
            device=device,
            num_threads=num_threads,
            on_progress=bar.update,
        )


if __name__ == "__main__":
    run(main)
