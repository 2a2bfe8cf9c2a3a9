"""Milliseconds per model-step of DP-SGD: ours, Opacus in each of its modes, and the floor.

Run as `python -m benchmarks.training`. benchmarks/README.md says what is measured.
"""

import argparse
import json
import sys
import warnings
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, process_time

import torch

from benchmarks.contenders import (
    CASES,
    MODES,
    Case,
    Contender,
    floor,
    opacus,
    ours,
    small_floor,
    synchronise,
)
from dpcanary.core.devices import chosen_device

# Wall and processor time.
Times = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Timing:
    """Medians at one sample rate, in milliseconds per model-step.

    Attributes:
        model: name of the model.
        sample_rate: q.
        runs: models that ours trains.
        ours_ms: `train_ensemble`.
        unrotated_ms: `train_ensemble` in all dimensions, for the linear head.
        opacus_ms: the loop of Opacus's tutorials with its Poisson loader, by mode.
        opacus_step_ms: bare steps of Opacus on batches that are ready beforehand, by mode.
        floor_ms: the two matrix products of every layer and the noise; for convolutions, one large
            product with as many multiplications, and the noise; for the fcnn, all arithmetic, tanh
            and the noise.
        processor_ms: processor time of all contenders, summed over the cores. Unlike the others it
            hardly depends on what else the machine does.
    """

    model: str
    sample_rate: float
    runs: int
    ours_ms: float
    unrotated_ms: float | None
    opacus_ms: dict[str, float]
    opacus_step_ms: dict[str, float]
    floor_ms: float
    processor_ms: dict[str, float]


@dataclass(frozen=True)
class Effort:
    """How long each contender is timed.

    Attributes:
        runs: models that ours trains.
        steps: steps of ours.
        opacus_steps: steps of Opacus's one model.
        threads: threads of PyTorch, and our workers.
        repeats: timings of each contender.
        device: where to train.
    """

    runs: int
    steps: int
    opacus_steps: int
    threads: int
    repeats: int
    device: torch.device


def contenders(case: Case, rate: float, effort: Effort) -> dict[str, Contender]:
    """All contenders at one sample rate, by name; modes of Opacus that refuse are left out."""
    mine = {
        "runs": effort.runs,
        "steps": effort.steps,
        "threads": effort.threads,
        "device": effort.device,
    }
    by_name = {"ours": ours(case, rate, **mine)}
    if case.name == "linear":
        by_name["unrotated"] = ours(case, rate, **mine, rotate=False)
    if case.name == "fcnn":
        hosts = {name: mine[name] for name in ("runs", "steps", "threads")}
        by_name["floor"] = small_floor(case, rate, **hosts)
    else:
        by_name["floor"] = floor(case, rate, **mine)
    theirs = {"steps": effort.opacus_steps, "device": effort.device}
    for mode in MODES:
        try:
            for name, from_loader in ((mode, True), (f"{mode} step", False)):
                by_name[name] = opacus(case, rate, **theirs, mode=mode, from_loader=from_loader)
                by_name[name]()
        except Exception as error:
            print(f"{case.name}: Opacus refuses {mode}: {error}", file=sys.stderr)
            by_name = {key: value for key, value in by_name.items() if not key.startswith(mode)}
    return by_name


def milliseconds(contender: Contender, device: torch.device) -> tuple[float, float]:
    """Milliseconds per model-step, timed once: on the clock, and of the processor."""
    synchronise(device)
    started, used = perf_counter(), process_time()
    model_steps = contender()
    scale = 1e3 / model_steps
    return scale * (perf_counter() - started), scale * (process_time() - used)


def measure(case: Case, rate: float, effort: Effort) -> Timing:
    """Medians over the repeats; each repeat times every contender once, in turn."""
    by_name = contenders(case, rate, effort)
    times: Times = {name: [] for name in by_name}
    for repeat in range(effort.repeats + 1):  # the first warms up
        print(f"{case.name}, q = {rate:g}: {repeat} of {effort.repeats}", file=sys.stderr)
        for name, contender in by_name.items():
            times[name].append(milliseconds(contender, effort.device))
    medians = {name: median(wall for wall, _ in values[1:]) for name, values in times.items()}
    return Timing(
        model=case.name,
        sample_rate=rate,
        runs=effort.runs,
        ours_ms=medians["ours"],
        unrotated_ms=medians.get("unrotated"),
        opacus_ms={mode: medians[mode] for mode in MODES if mode in medians},
        opacus_step_ms={
            mode: medians[f"{mode} step"] for mode in MODES if f"{mode} step" in medians
        },
        floor_ms=medians["floor"],
        processor_ms={name: median(cpu for _, cpu in pairs[1:]) for name, pairs in times.items()},
    )


def table(timings: list[Timing]) -> str:
    """The timings as a table of text."""
    head = ("model", "q", "ours", "unrotated", "floor", *MODES)
    last = ("loop / ours", "step / ours", "ours, CPU", "floor, CPU", "ratio, CPU")
    lines = ["  ".join(f"{name:>13}" for name in (*head, *last))]
    for timing in timings:
        loop, bare, used = timing.opacus_ms, timing.opacus_step_ms, timing.processor_ms
        cells = [
            timing.model,
            f"{timing.sample_rate:g}",
            *map(_cell, (timing.ours_ms, timing.unrotated_ms, timing.floor_ms)),
            *(f"{loop[mode]:.2f}/{bare[mode]:.2f}" if mode in loop else "-" for mode in MODES),
            f"{min(loop.values()) / timing.ours_ms:.1f}",
            f"{min(bare.values()) / timing.ours_ms:.1f}",
            *map(_cell, (used["ours"], used["floor"])),
            f"{min(used[f'{mode} step'] for mode in bare) / used['ours']:.1f}",
        ]
        lines.append("  ".join(f"{cell:>13}" for cell in cells))
    return "\n".join(
        [
            "Milliseconds per model-step, medians. Opacus by mode: the loop of its tutorials / its"
            " bare steps;",
            "next, its fastest mode over ours; last, processor time summed over the cores, and the"
            " bare steps' ratio by it.",
            *lines,
        ]
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--models", nargs="+", choices=[*CASES], default=[*CASES])
    parser.add_argument("--runs", type=int, default=256, help="models of ours")
    parser.add_argument("--steps", type=int, default=100, help="steps of each timing of ours")
    parser.add_argument("--opacus-steps", type=int, default=50, help="steps of each of Opacus's")
    parser.add_argument("--repeats", type=int, default=7, help="timings of each contender")
    parser.add_argument(
        "--threads", type=int, default=2, help="threads of PyTorch, and our workers"
    )
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="cpu")
    options = parser.parse_args(argv)
    for message in ("Secure RNG turned off", "Full backward hook is firing"):
        warnings.filterwarnings("ignore", message, UserWarning)
    torch.set_num_threads(options.threads)
    timings = []
    for name in options.models:
        # Larger models take longer, so fewer of them are trained in about the same time.
        share = {"linear": 1, "mlp": 8, "fcnn": 1 / 16, "convnet": 64, "convnet-fixed": 64}[name]
        effort = Effort(
            runs=max(options.threads, int(options.runs / share)),
            steps=max(5, options.steps // max(1, int(share / 8))),
            opacus_steps=max(5, options.opacus_steps // max(1, int(share / 8))),
            threads=options.threads,
            repeats=options.repeats,
            device=chosen_device(options.device),
        )
        case = CASES[name]
        timings += [measure(case, rate, effort) for rate in case.sample_rates]
    if options.json:
        print(json.dumps([asdict(timing) for timing in timings], indent=2))
    else:
        print(table(timings))


if __name__ == "__main__":
    main()
