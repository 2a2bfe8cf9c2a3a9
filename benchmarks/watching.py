"""What watching a training shows, what it costs, and how often it is wrong.

Run as `python -m benchmarks.watching NAME ...` with some of the names: `digits` (a hundred
trainings, watched and not: bounds and accuracy), `cells` (the settings that "Let's Ask Gauss"
published, drawn exactly), `alarms` (right trainings without a model) and `time` (of a step).
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import torch
from torch import nn

from dpcanary import Adjacency, Mechanism, account_by_adjacency, estimate_epsilon
from dpcanary.core.printing import rounded_up
from dpcanary.watching.canary_secrets import Secrets, log_likelihood_ratio
from dpcanary.watching.opacus import watch
from dpcanary.watching.recorder import Recorder
from dpcanary.watching.watched_step import StepSettings

DELTA = 1e-5


def _with_error(values: list[float]) -> str:
    return f"{mean(values):.3f} +- {stdev(values) / sqrt(len(values)):.3f}"


def train_digits(seed: int, *, watched: bool) -> tuple[float, float]:
    """One training of a perceptron on 1,400 digits; what it shows, and its test accuracy."""
    from opacus import PrivacyEngine
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    features, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    data = torch.utils.data.TensorDataset(features[:1400], labels[:1400])
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=torch.utils.data.DataLoader(data, batch_size=140),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
    )
    watch_it = watch(optimizer, seed=seed)

    def train() -> None:
        for _ in range(20):
            for batch, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch), targets).backward()
                optimizer.step()

    bound = float("nan")
    if watched:
        with watch_it:
            train()
        bound = watch_it.result(delta=DELTA).epsilon_lower
    else:
        train()
    with torch.no_grad():
        right = model(features[1400:]).argmax(dim=1) == labels[1400:]
    return bound, float(right.float().mean())


def digits(seeds: int) -> None:
    """Bounds and accuracies of watched trainings, and of the same ones unwatched."""
    truth = account_by_adjacency(
        Mechanism("substitute", sample_rate=0.1, num_steps=200, noise_multiplier=2.0), delta=DELTA
    ).substitute
    bounds, with_canaries, without = [], [], []
    for seed in range(seeds):
        bound, accuracy = train_digits(seed, watched=True)
        bounds.append(bound)
        with_canaries.append(accuracy)
        without.append(train_digits(seed, watched=False)[1])
    above = mean(float(bound > truth) for bound in bounds)
    paired = [
        watched - unwatched for watched, unwatched in zip(with_canaries, without, strict=True)
    ]
    shown = f"{_with_error(bounds)} of {rounded_up(truth)}"
    print(f"digits: shown {shown}; above it {above:.3f} of {seeds}")
    print(f"  accuracy {mean(with_canaries):.4f} with canaries, {mean(without):.4f} without;")
    print(f"  paired difference {_with_error(paired)}")


@dataclass(frozen=True)
class Cell:
    """A published setting: the noise, and what is accounted and was shown under add/remove."""

    noise_multiplier: float
    accounted: float
    published: float


# "Let's Ask Gauss" (2606.12733): K = 5,000, T = 2,500, q = 4,096 / 50,000.
CELLS = (
    Cell(15.684, 0.97, 0.55),
    Cell(8.4256, 1.95, 1.25),
    Cell(4.6135, 3.89, 3.11),
    Cell(2.6295, 7.79, 6.38),
)
_CANARIES, _STEPS, _RATE = 5_000, 2_500, 4_096 / 50_000


def drawn_scores(cell: Cell, adjacency: Adjacency, *, seed: int) -> dict[str, Any]:
    """Scores of the canaries of one training, drawn without it: all updates, and their sum."""
    secrets = Secrets(num_canaries=_CANARIES, adjacency=adjacency, seed=seed)
    rng = np.random.default_rng((seed, 1))
    ratios, total = np.zeros(_CANARIES), np.zeros(_CANARIES)
    noise, rate = np.array([cell.noise_multiplier]), np.array([_RATE])
    for step in range(_STEPS):
        seen = secrets.added(step, sample_rate=_RATE)
        seen = seen + cell.noise_multiplier * rng.standard_normal(_CANARIES)
        ratios += log_likelihood_ratio(
            seen[None], noise_multiplier=noise, sample_rate=rate, adjacency=adjacency
        )[0]
        total += seen
    first = secrets.worlds == 0
    return {"all updates": (ratios[first], ratios[~first]), "sum": (total[first], total[~first])}


def cells(draws: int) -> None:
    """A row for each published cell and adjacency."""
    for adjacency in (Adjacency.ADD_REMOVE, Adjacency.SUBSTITUTE):
        for cell in CELLS:
            mechanism = Mechanism(
                adjacency,
                sample_rate=_RATE,
                num_steps=_STEPS,
                noise_multiplier=cell.noise_multiplier,
            )
            accounted = account_by_adjacency(mechanism, delta=DELTA)
            truth = getattr(accounted, adjacency.value)
            bounds: dict[str, list[float]] = {}
            for seed in range(draws):
                scores = drawn_scores(cell, adjacency, seed=seed)
                for name, conversion in (
                    ("all updates", "subsampled_gaussian"),
                    ("all updates", "gdp"),
                    ("sum", "gdp"),
                ):
                    bound = estimate_epsilon(
                        world0_scores=scores[name][0],
                        world1_scores=scores[name][1],
                        delta=DELTA,
                        conversion=conversion,
                        mechanism=mechanism if conversion != "gdp" else None,
                    )
                    bounds.setdefault(f"{name}, {conversion}", []).append(bound.epsilon_lower)
            texts = [
                f"{name}: {_with_error(values)} ({sum(value > truth for value in values)} above)"
                for name, values in bounds.items()
            ]
            published = f", published {cell.published}" if adjacency == "add_remove" else ""
            accounted_epsilon = f"accounted {rounded_up(truth)}{published}"
            print(f"{adjacency.value}, {accounted_epsilon}: " + "; ".join(texts))


def simulated_training(seed: int, *, size: int, steps: int, num_records: int = 1_000) -> Recorder:
    """A right training without a model: sums of noise, and binomial batches."""
    recorder = Recorder(
        {"weight": (size - 10,), "bias": (10,)},
        noise_multiplier=1.5,
        sample_rate=0.1,
        num_records=num_records,
        seed=seed,
        on_alarm=lambda alarm: None,
    )
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        sums = [torch.zeros(size - 10), torch.zeros(10)]
        batch = float(rng.binomial(num_records, 0.1))
        recorder.before_noise(sums, StepSettings(1.5, 1.0, 0.1, batch))
        noisy = [part + 1.5 * torch.randn(part.shape, generator=generator) for part in sums]
        recorder.after_noise(noisy)
    recorder.evaluate()
    return recorder


def alarms(trainings: int) -> None:
    """How many right trainings raise an alarm, at level .001."""
    raised = sum(
        simulated_training(seed, size=2_000, steps=200).alarm is not None
        for seed in range(trainings)
    )
    print(f"alarms: {raised} of {trainings:,} right trainings of 200 steps, at level .001")


def _milliseconds(step: Callable[[], object], steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return 1e3 * (time.perf_counter() - start) / steps


def _model(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, 10))  # fmt: skip


def steps_timed(width: int, *, batch: int, repeats: int, steps: int) -> None:
    """Milliseconds of an Opacus step of a perceptron, watched and not, in turn."""
    from opacus import PrivacyEngine

    data = torch.utils.data.TensorDataset(torch.randn(2_000, 64), torch.randint(0, 10, (2_000,)))
    model, optimizer, _ = PrivacyEngine(accountant="rdp").make_private(
        module=(module := _model(width)),
        optimizer=torch.optim.SGD(module.parameters(), lr=0.01),
        data_loader=torch.utils.data.DataLoader(data, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    inputs, targets = torch.randn(batch, 64), torch.randint(0, 10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    plain, watched = [], []
    for _ in range(repeats + 1):
        plain.append(_milliseconds(step, steps))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the batches here have one size
            with watch(optimizer, seed=0):
                for _ in range(5):  # clipping is tried in the first and the fourth step
                    step()
                watched.append(_milliseconds(step, steps))
    pairs = [*zip(plain, watched, strict=True)][1:]
    ratio = median(with_watch / alone for alone, with_watch in pairs)
    added = median(with_watch - alone for alone, with_watch in pairs)
    size = sum(p.numel() for p in module.parameters())
    print(
        f"time: {size:>11,} parameters, batch {batch}: {median(plain[1:]):8.2f} ms without,"
        f" {added:+.3f} ms with; ratio {ratio:.3f}",
        flush=True,
    )


def main(argv: list[str] | None = None) -> None:
    """Runs the named measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching", description=__doc__)
    parser.add_argument("names", nargs="+", choices=["digits", "cells", "alarms", "time"])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--trainings", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", module="opacus|torch")
    if "digits" in options.names:
        digits(options.seeds)
    if "cells" in options.names:
        cells(options.draws)
    if "alarms" in options.names:
        alarms(options.trainings)
    if "time" in options.names:
        steps_timed(64, batch=64, repeats=9, steps=200)
        steps_timed(900, batch=64, repeats=5, steps=20)
        steps_timed(9_900, batch=4, repeats=2, steps=2)


if __name__ == "__main__":
    main()
