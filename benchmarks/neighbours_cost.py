"""Time and memory of `check_neighbours` with one replacement, beside the training's own.

    python -m benchmarks.neighbours_cost                            # 10^7 parameters, 100 steps
    python -m benchmarks.neighbours_cost encoder train.npz          # docs/examples' DeiT-Tiny

Prints seconds of the training alone and of the check, their ratio, and the peak of the resident
set. The check runs the training three times: recorded, control, and replaced. Measure on an idle
machine; each measurement has a process of its own.
"""

import copy
import resource
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary.checking.neighbours.neighbours_check import check_neighbours
from dpcanary.checking.neighbours.replacements import Replacement

EXAMPLE = Path(__file__).parents[1] / "docs/examples/watched_finetuning.py"
WIDTH, HIDDEN, CLASSES, NUM_STEPS = 784, 12_500, 10, 100
NUM_IMAGES, NUM_EPOCHS = 2_000, 4


def wide_records() -> TensorDataset:
    """Random records."""
    draws = torch.Generator().manual_seed(0)
    features = torch.randn(400, WIDTH, generator=draws)
    return TensorDataset(features, torch.randint(CLASSES, (400,), generator=draws))


def train_wide(dataset: TensorDataset) -> nn.Module:
    """A perceptron of 10^7 parameters, by ghost clipping."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    model, optimizer, loss, loader = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(dataset, batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    step = 0
    while step < NUM_STEPS:
        for features, labels in loader:
            if step == NUM_STEPS:
                break
            optimizer.zero_grad()
            loss(model(features), labels).backward()
            optimizer.step()
            step += 1
    return network


@cache
def example() -> Any:
    """The module of the example."""
    spec = spec_from_file_location("watched_finetuning", EXAMPLE)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def encoder() -> nn.Module:
    """DeiT-Tiny."""
    from transformers import AutoModel

    module: nn.Module = AutoModel.from_pretrained(sys.argv[1], dtype=torch.float32)
    return module.eval()


def encoded_images() -> TensorDataset:
    """What the frozen blocks make of images."""
    images, labels = example().prepared(sys.argv[2], NUM_IMAGES)
    return TensorDataset(example().before_last_blocks(encoder(), images), labels)


def finetune(dataset: TensorDataset) -> nn.Module:
    """Low-rank adapters in the last two blocks, and a head."""
    own = copy.deepcopy(encoder())
    model, optimizer, loader = example().private_training(own, dataset, num_classes=10)
    for _ in range(NUM_EPOCHS):
        example().train_epoch(model, optimizer, loader)
    module: nn.Module = model
    return module


Case = tuple[Callable[[], TensorDataset], Callable[[TensorDataset], nn.Module]]


def measured(case: Case, *, is_checked: bool) -> tuple[float, float, bool]:
    """Seconds, peak of the resident set in GB, and whether the check passes."""
    warnings.simplefilter("ignore")
    records, train = case
    dataset = records()
    features, label = dataset[0]
    since, passes = perf_counter(), True
    if is_checked:
        zeros = Replacement(0, (features * 0, 1 - int(label > 0)), "zeros")
        passes = check_neighbours(train, dataset, replacements=[zeros]).passes
    else:
        train(dataset)
    seconds = perf_counter() - since
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, passes


def main() -> None:
    """Prints a line for each of three repetitions."""
    case: Case = (encoded_images, finetune) if len(sys.argv) > 1 else (wide_records, train_wide)
    for _ in range(3):
        results = []
        for is_checked in (False, True):
            with get_context("spawn").Pool(1) as pool:
                results.append(pool.apply(measured, (case,), {"is_checked": is_checked}))
        (alone, memory, _), (checked, most, passes) = results
        print(
            f"alone {alone:.1f} s, {memory:.2f} GB; checked {checked:.1f} s, {most:.2f} GB:"
            f" {checked / alone:.2f} times, {'passes' if passes else 'FAILS'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
