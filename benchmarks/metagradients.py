"""Time and peak memory of metagradients of ResNet-9, beside those of the training alone.

Run as `python -m benchmarks.metagradients`; peaks need Linux and glibc. benchmarks/README.md says
what is measured.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.memory import MIB, peak_of
from dpcanary import Records
from dpcanary.errors import InputError
from dpcanary.papers.boglioni.differentiable_training import Descent, Task, Training, trained
from dpcanary.papers.boglioni.metagradient_canaries import drawn_training
from dpcanary.papers.boglioni.metagradients import (
    loss_gap_objective,
    metagradient,
    planned_segments,
)
from dpcanary.training.residual_networks import resnet9

NUM_CANARIES, MOMENTUM, DECAY = 16, 0.9, 5e-4
ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU}
CONTENDERS = ("plain", "forward", "all states", "checkpoints")


@dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        width: of the first layer.
        batch_size: images of a batch; there are four times as many in all.
        steps: of the training.
        activation: after every group norm, one of `ACTIVATIONS`.
    """

    width: int
    batch_size: int
    steps: int
    activation: str

    def draw(self) -> tuple[Training, NDArray[np.int64]]:
        """A training on normal images, and which canaries are in; only their shape takes time."""
        rng = np.random.default_rng(0)
        count = 4 * self.batch_size - NUM_CANARIES // 2
        images = rng.standard_normal((count, 3, 32, 32), np.float32)
        task = Task(
            module=resnet9(width=self.width, activation=ACTIVATIONS[self.activation]),
            records=Records(images, rng.integers(0, 10, count)),
            canary_labels=rng.integers(0, 10, NUM_CANARIES),
        )
        descent = Descent((0.05,) * self.steps, MOMENTUM, nesterov=True, weight_decay=DECAY)
        return drawn_training(task, descent=descent, batch_size=self.batch_size, seed=0, index=0)


def contender(case: Case, name: str) -> Callable[[], object]:
    """What is measured; data and module are made beforehand."""
    training, inserted = case.draw()
    pixels = torch.randn((NUM_CANARIES, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    if name == "plain":
        return lambda: plain_loop(training, pixels)
    if name == "forward":
        return lambda: trained(training, pixels)
    vector = training.start.numel() * training.start.element_size()
    budget = None if name == "all states" else vector * least_capacity(case.steps)
    objective = loss_gap_objective(training.task, inserted)
    return lambda: metagradient(
        training=training, pixels=pixels, objective=objective, memory_budget=budget
    )


def plain_loop(training: Training, pixels: torch.Tensor) -> None:
    """Run a training as a plain loop of PyTorch, the baseline."""
    task, module = training.task, training.task.module
    decay = {"momentum": MOMENTUM, "nesterov": True, "weight_decay": DECAY}
    optimizer = torch.optim.SGD(module.parameters(), lr=training.descent.learning_rates[0], **decay)
    for batch in training.batches:
        images = torch.cat([task.features[batch.records], pixels[batch.canaries]])
        labels = torch.cat([task.labels[batch.records], task.canary_labels[batch.canaries]])
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(images), labels).backward()
        optimizer.step()


def least_capacity(steps: int) -> int:
    """The fewest vectors of parameters with which there is a way back."""
    for capacity in range(1, steps + 1):
        try:
            planned_segments(steps, capacity)
        except InputError:
            continue
        return capacity
    raise AssertionError("all states always suffice")


def seconds(case: Case, repeats: int) -> dict[str, list[float]]:
    """Processor seconds of every contender, in turn; the first repeat warms up."""
    ready = {name: contender(case, name) for name in CONTENDERS}
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for repeat in range(repeats + 1):
        for name, task in ready.items():
            start = process_time()
            task()
            times[name].append(process_time() - start)
        print(f"repeat {repeat} of {repeats}", file=sys.stderr)
    return {name: values[1:] for name, values in times.items()}


def peak(case: Case, name: str) -> float:
    """Growth of the resident set in MiB; must run in a fresh process."""
    torch.set_num_threads(1)
    contender(Case(2, 8, 2, case.activation), name)()  # loads what is loaded at the first use
    return peak_of(contender(case, name)) / MIB


def measured(case: Case, repeats: int) -> list[dict[str, object]]:
    """A row for each contender; ratios are medians over repeats, of times of the same repeat."""
    with get_context("forkserver").Pool(1, maxtasksperchild=1) as pool:
        peaks = pool.starmap(peak, [(case, name) for name in CONTENDERS], chunksize=1)
    times = seconds(case, repeats)
    rows = []
    for name, mib in zip(CONTENDERS, peaks, strict=True):
        pairs = list(zip(times[name], times["forward"], strict=True))
        back = name in ("all states", "checkpoints")
        rows.append(
            {
                "contender": name,
                "ms_per_step": 1e3 * median(times[name]) / case.steps,
                "over_forward": median(own / forward for own, forward in pairs),
                "way_back": median(own / forward - 1 for own, forward in pairs) if back else None,
                "peak_mib": mib,
            }
        )
    return rows


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metagradients", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--activation", choices=[*ACTIVATIONS], default="gelu")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    case = Case(options.width, options.batch_size, options.steps, options.activation)
    rows = measured(case, options.repeats)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'':<12}{'ms per step':>12}{'/ forward':>12}{'way back':>12}{'peak, MiB':>12}")
    for row in rows:
        cells = [row[key] for key in ("ms_per_step", "over_forward", "way_back", "peak_mib")]
        text = "".join(f"{'' if cell is None else format(cell, '.4g'):>12}" for cell in cells)
        print(f"{row['contender']:<12}{text}")


if __name__ == "__main__":
    main()
