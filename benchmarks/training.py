"""Milliseconds per model-step of DP-SGD: ours, Opacus's in each of its modes, and the floor.

Run as `python -m benchmarks.training`; what is measured is told in benchmarks/README.md.
"""

import argparse
import itertools
import json
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary.canaries import GradientCanary
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.inputs import DPSGD, Records

NUM_RECORDS, NUM_FEATURES, NUM_CLASSES = 500, 768, 10
WIDTH = NUM_CLASSES * (NUM_FEATURES + 1)
SAMPLE_RATES = (1.0, 0.25, 0.0625)
MODES = ("hooks", "functorch", "ew", "ghost")
NOISE_MULTIPLIER, MAX_GRAD_NORM, LEARNING_RATE = 5.0, 2.0, 0.01
NOISE_BYTES = 32 * 2**20  # drawn at once for the floor
CPU = torch.device("cpu")

# Trains for a number of steps; the return value is the number of model-steps done.
Contender = Callable[[], int]


@dataclass(frozen=True)
class Timing:
    """Medians at one sample rate, in milliseconds per model-step.

    Attributes:
        model: which model.
        sample_rate: q.
        runs: models that ours trains in lockstep.
        ours_ms: train_ensemble.
        opacus_ms: by mode; the loop of its tutorials, with its Poisson loader.
        opacus_step_ms: by mode; the bare steps, on batches that are ready beforehand.
        floor_ms: the two matrix products and the noise.
    """

    model: str
    sample_rate: float
    runs: int
    ours_ms: float
    opacus_ms: dict[str, float]
    opacus_step_ms: dict[str, float]
    floor_ms: float

    @property
    def speedup(self) -> float:
        """Over the fastest mode of Opacus, by its tutorials' loop."""
        return min(self.opacus_ms.values()) / self.ours_ms

    @property
    def step_speedup(self) -> float:
        """Over the fastest mode of Opacus, bare steps."""
        return min(self.opacus_step_ms.values()) / self.ours_ms


def some_records() -> Records:
    """Standard normal features, random labels; the time depends on their shape alone."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((NUM_RECORDS, NUM_FEATURES), np.float32)
    labels = rng.integers(0, NUM_CLASSES, NUM_RECORDS)
    return Records(features, labels, features[:1], labels[:1], NUM_CLASSES, target=0)


def ours(records: Records, sample_rate: float, runs: int, steps: int, threads: int) -> Contender:
    """train_ensemble from start to end, its set-up included."""
    dpsgd = DPSGD(
        sample_rate=sample_rate,
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=MAX_GRAD_NORM,
        learning_rate=LEARNING_RATE,
        record_steps=(steps,),
    )

    def train() -> int:
        train_ensemble(
            records=records,
            canary=GradientCanary(coordinate=0),
            dpsgd=dpsgd,
            runs=range(runs),
            seed=0,
            device=CPU,
            num_threads=threads,
        )
        return runs * steps

    return train


def opacus(
    records: Records, sample_rate: float, steps: int, mode: str, *, from_loader: bool
) -> Contender:
    """One model by Opacus; engine and loader are made beforehand.

    With `from_loader`, the loop of its tutorials: batches come from the Poisson loader that
    `make_private` returns. Without, batches are ready beforehand: the bare steps.
    """
    features, labels = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    linear = nn.Linear(NUM_FEATURES, NUM_CLASSES)
    made = PrivacyEngine().make_private(
        module=linear,
        optimizer=torch.optim.SGD(linear.parameters(), lr=LEARNING_RATE),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(
            TensorDataset(features, labels), batch_size=round(sample_rate * NUM_RECORDS)
        ),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=MAX_GRAD_NORM,
        grad_sample_mode=mode,
    )
    model, optimizer, loader = made[0], made[1], made[-1]
    # Ghost clipping alone returns a criterion: it runs the two backward passes.
    criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
    rng = np.random.default_rng(1)
    chosen = [torch.from_numpy(rng.random(NUM_RECORDS) < sample_rate) for _ in range(steps)]
    batches = [(features[batch], labels[batch]) for batch in chosen]

    def train() -> int:
        epochs = itertools.chain.from_iterable(itertools.repeat(loader))
        for inputs, targets in itertools.islice(epochs, steps) if from_loader else batches:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
        return steps

    return train


def floor(sample_rate: float, runs: int, steps: int, threads: int) -> Contender:
    """Logits and gradient sums of `runs` models on q N records, and their noise; nothing else.

    The products are (runs x classes, width) by (width, q N) and (runs x classes, q N) by
    (q N, width), as if all runs had the same batch: what no lockstep training on the processor
    can do without. The noise is NumPy's fastest normal stream, one per run, over the threads,
    for several steps at once as train_ensemble draws it.
    """
    expected = round(sample_rate * NUM_RECORDS)
    rows, columns = torch.randn(expected, NUM_FEATURES + 1), runs * NUM_CLASSES
    by_column = rows.T.contiguous()
    weights = torch.randn(columns, NUM_FEATURES + 1)
    residuals = torch.randn(columns, expected)
    ahead = max(1, NOISE_BYTES // (4 * runs * WIDTH))
    noise = np.empty((runs, ahead, WIDTH), np.float32)
    streams = [np.random.Generator(np.random.SFC64(run)) for run in range(runs)]
    logits, sums = torch.empty(columns, expected), torch.empty_like(weights)

    def draw(run: int, count: int) -> None:
        streams[run].standard_normal(out=noise[run, :count], dtype=np.float32)

    def compute() -> int:
        with ThreadPoolExecutor(threads) as pool:
            for step in range(steps):
                if step % ahead == 0:
                    list(pool.map(draw, range(runs), [min(ahead, steps - step)] * runs))
                torch.mm(weights, by_column, out=logits)
                torch.mm(residuals, rows, out=sums)
        return runs * steps

    return compute


def milliseconds(contender: Contender) -> float:
    """Milliseconds per model-step of one go."""
    started = perf_counter()
    model_steps = contender()
    return 1e3 * (perf_counter() - started) / model_steps


def measure(*, runs: int, steps: int, threads: int, repeats: int) -> list[Timing]:
    """Medians over the repeats; each repeat times every contender once, in turn."""
    torch.set_num_threads(threads)
    records = some_records()
    contenders: dict[tuple[float, str], Contender] = {}
    for rate in SAMPLE_RATES:
        contenders[rate, "ours"] = ours(records, rate, runs, steps, threads)
        contenders[rate, "floor"] = floor(rate, runs, steps, threads)
        for mode in MODES:
            contenders[rate, mode] = opacus(records, rate, steps, mode, from_loader=True)
            bare = opacus(records, rate, steps, mode, from_loader=False)
            contenders[rate, f"{mode} step"] = bare
    times: dict[tuple[float, str], list[float]] = {key: [] for key in contenders}
    for contender in contenders.values():
        contender()  # warms up
    for repeat in range(repeats):
        print(f"repeat {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
        for key, contender in contenders.items():
            times[key].append(milliseconds(contender))
    return [
        Timing(
            model="linear",
            sample_rate=rate,
            runs=runs,
            ours_ms=median(times[rate, "ours"]),
            opacus_ms={mode: median(times[rate, mode]) for mode in MODES},
            opacus_step_ms={mode: median(times[rate, f"{mode} step"]) for mode in MODES},
            floor_ms=median(times[rate, "floor"]),
        )
        for rate in SAMPLE_RATES
    ]


def table(timings: list[Timing]) -> str:
    """The timings for a reader."""
    head = ("q", "ours", "floor", *MODES, "speed-up", "over steps", "over floor")
    lines = ["  ".join(f"{name:>12}" for name in head)]
    for timing in timings:
        cells = [
            f"{timing.sample_rate:g}",
            f"{timing.ours_ms:.4f}",
            f"{timing.floor_ms:.4f}",
            *(f"{timing.opacus_ms[mode]:.2f}/{timing.opacus_step_ms[mode]:.2f}" for mode in MODES),
            f"{timing.speedup:.1f}",
            f"{timing.step_speedup:.1f}",
            f"{timing.ours_ms / timing.floor_ms:.2f}",
        ]
        lines.append("  ".join(f"{cell:>12}" for cell in cells))
    return "\n".join(
        [
            f"{NUM_RECORDS} records, {NUM_CLASSES} classes of {NUM_FEATURES + 1} parameters;"
            f" {timings[0].runs} runs in lockstep; milliseconds per model-step, medians.",
            "Opacus by mode: the loop of its tutorials / its bare steps; speed-ups are over its"
            " fastest mode.",
            *lines,
        ]
    )


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--runs", type=int, default=64, help="models in lockstep")
    parser.add_argument("--steps", type=int, default=50, help="steps of each timing")
    parser.add_argument("--repeats", type=int, default=7, help="timings of each contender")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and of the noise")
    options = parser.parse_args(argv)
    warnings.filterwarnings("ignore", "Secure RNG turned off", UserWarning)
    warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
    timings = measure(
        runs=options.runs, steps=options.steps, threads=options.threads, repeats=options.repeats
    )
    if options.json:
        print(json.dumps([asdict(timing) for timing in timings], indent=2))
    else:
        print(table(timings))


if __name__ == "__main__":
    main()
