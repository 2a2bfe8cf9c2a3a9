"""Peak memory of training by runs, records and parameters, compared with the prediction.

Run as `python -m benchmarks.memory`; needs Linux and glibc. Each measurement has a fresh process of
one thread. The process first trains a small ensemble, so that libraries and compiled loops are
loaded. A peak is the largest growth of the resident set over its size just before `train_ensemble`.
The kernel records it (VmHWM) after a reset. Sampling would miss tensors that live for a
millisecond, and `getrusage` cannot be reset after the imports.

Each peak is measured twice: with glibc's defaults, which keep much freed memory (resident), and
with blocks above 64 KiB returned when freed (tensors). The ConvNet's path keeps them in both cases.
The prediction is what `train_ensemble` plans with: the bytes of a run times the runs, plus what
exists once, which is the records and, where runs take turns, the activations of a batch.
"""

import argparse
import ctypes
import itertools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from dpcanary import Records
from dpcanary.figures import layout, style
from dpcanary.training import DPSGD, GradientCanary, Optimizer, train_ensemble
from dpcanary.training.dpsgd import state_tensors
from dpcanary.training.gradients.choose import path_of
from dpcanary.training.models import convnet
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.slots import table_of

STEPS, MIB, FACTORS = 3, 2**20, (0.25, 0.5, 1, 2, 4)
AXES = {"runs": "runs at once", "records": "private records", "parameters": "parameters of a run"}
HOST, CANARY = torch.device("cpu"), GradientCanary(0, 0)


@dataclass(frozen=True)
class Kind:
    """A kind of model and mechanism.

    Attributes:
        module: makes a model of a given size.
        rate: q.
        base: runs, records and size while another quantity varies.
        sizes: sizes of models, each with about twice the parameters of the one before.
        look: colour and marker in the figure.
        optimizer: the optimiser.
    """

    module: Callable[[int], nn.Module]
    rate: float
    base: tuple[int, int, int]
    sizes: tuple[int, ...]
    look: tuple[str, str]
    optimizer: Optimizer = Optimizer.SGD

    def dpsgd(self) -> DPSGD:
        """The mechanism."""
        return DPSGD(5.0, 2.0, 0.01, (STEPS,), self.rate, optimizer=self.optimizer)


def _perceptron(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(600, hidden), nn.Tanh(), nn.Linear(hidden, 100))


HEAD = partial(nn.Linear, out_features=10)
BASE, FEATURES = (128, 500, 768), (192, 384, 768, 1536, 3072)
HIDDEN, CLASSES = (32, 64, 128, 256, 512), (10, 740, 2200, 5117, 10953)
KINDS = {
    "linear head, q = 1": Kind(HEAD, 1, BASE, FEATURES, ("#0072B2", "o")),
    "linear head, q = 1/16": Kind(HEAD, 1 / 16, BASE, FEATURES, ("#56B4E9", "s")),
    "perceptron, q = 1/4": Kind(
        _perceptron, 1 / 4, (16, 500, 128), HIDDEN, ("#D55E00", "^"), Optimizer.ADAM
    ),
    "ConvNet, q = 1": Kind(convnet, 1, (16, 128, 10), CLASSES, ("#009E73", "D")),
}


@dataclass(frozen=True)
class Point:
    """What is trained, and the bytes that it takes.

    Attributes:
        kind: one of `KINDS`.
        axis: what varies, one of `AXES`.
        runs: runs at once.
        records: private records.
        size: size of the model.
        parameters: parameters of a run.
        predicted: predicted bytes.
        resident: peak in bytes.
        tensors: peak in bytes if freed memory is returned.
    """

    kind: str
    axis: str
    runs: int
    records: int
    size: int
    parameters: int = 0
    predicted: int = 0
    resident: int = 0
    tensors: int = 0


def points() -> list[Point]:
    """Five points of each kind on each axis, in this order."""
    grid: list[Point] = []
    for name, kind in KINDS.items():
        runs, records, size = kind.base
        grid += [Point(name, "runs", round(runs * f), records, size) for f in FACTORS]
        grid += [Point(name, "records", runs, round(records * f), size) for f in FACTORS]
        grid += [Point(name, "parameters", runs, records, other) for other in kind.sizes]
    return grid


def records_for(module: nn.Module, count: int) -> Records:
    """Standard normal features and random labels, of the shape that a module takes."""
    layers = [layer for layer in module.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    shape = (layers[0].in_features,) if isinstance(layers[0], nn.Linear) else (3, 32, 32)
    classes = int(layers[-1].weight.shape[0])
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((count, *shape), np.float32), np.arange(count) % classes
    return Records(features, labels)


def train(kind: Kind, module: nn.Module, records: Records, runs: int) -> None:
    """Trains one unrotated block: the coordinates of a rotated head depend on the records."""
    start = partial(train_ensemble, canary=CANARY, seed=0, device=HOST, rotate=False)
    start(module=module, records=records, dpsgd=kind.dpsgd(), runs=runs, runs_at_once=runs)


def predicted_bytes(kind: Kind, module: nn.Module, records: Records, runs: int) -> int:
    """What `train_ensemble` plans with for the runs, plus what exists once."""
    dpsgd, table = kind.dpsgd(), table_of(records, [CANARY], HOST)
    path = path_of(module, table, dpsgd=dpsgd, basis=None)
    batch = round(dpsgd.expected_batch_size(len(records.labels)))
    kept = 4 * (1 + state_tensors(kind.optimizer)) * path.num_parameters
    once = sum({id(held): held.features.nbytes for held in (table, path.table)}.values())
    if isinstance(path, ModulePath):  # runs take turns: the activations of one of them
        together = ModulePath(module, table, dpsgd.loss, vectorise_runs=True)
        once += together.bytes_per_run(batch) - path.bytes_per_run(batch)
    return runs * (path.bytes_per_run(batch) + kept) + once


def peak_of(task: Callable[[], object]) -> int:
    """The largest growth of the resident set during a task, in bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = re.findall(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    task()
    after = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * (int(after[0]) - int(before[0]))


def measure(point: Point, give_back: bool) -> Point:
    """Measures one of the peaks of a point; must run in a fresh process."""
    if give_back:
        ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: larger blocks are unmapped
    kind = KINDS[point.kind]
    small, module = kind.module(kind.base[2]), kind.module(point.size)
    train(kind, small, records_for(small, round(2 / kind.rate)), 2)
    records = records_for(module, point.records)
    peak = peak_of(lambda: train(kind, module, records, point.runs))
    print(f"{point.kind}, {point.axis}: {peak / MIB:.1f} MiB", file=sys.stderr)
    return replace(
        point,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        predicted=predicted_bytes(kind, module, records, point.runs),
        resident=0 if give_back else peak,
        tensors=peak if give_back else 0,
    )


def measure_all() -> list[list[Point]]:
    """A series of points for each kind and axis, two processes at a time."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.memory"])  # libraries are imported once
    with context.Pool(2, maxtasksperchild=1) as pool:
        measurements = pool.starmap(
            measure, itertools.product(points(), (False, True)), chunksize=1
        )
    pairs = zip(measurements[::2], measurements[1::2], strict=True)
    done = [replace(point, tensors=other.tensors) for point, other in pairs]
    return [done[first : first + 5] for first in range(0, len(done), 5)]


def table(all_series: list[list[Point]]) -> str:
    """Peaks in MiB; the last row of a series: bytes that one run, record or parameter adds."""
    names = ("predicted", "resident", "tensors", "resident", "tensors")
    lines = [f"{'MiB; last, over predicted':<43}" + "".join(f"{name:>12}" for name in names)]
    for series in all_series:
        kind, axis = series[0].kind, series[0].axis
        xs = [getattr(point, axis) for point in series]
        rows = [[getattr(point, name) / MIB for name in names[:3]] for point in series]
        rows.append(MIB * np.polyfit(xs, rows, 1)[0])
        for x, row in zip([*xs, "bytes each"], rows, strict=True):
            cells = "".join(f"{value:>12,.1f}" for value in row)
            ratios = "".join(f"{value / row[0]:>12.2f}" for value in row[1:])
            lines.append(f"{kind:<23}{axis[:-1]:<10}{x:>10}{cells}{ratios}")
    return "\n".join(lines)


def draw(all_series: list[list[Point]], path: Path) -> None:
    """Writes the figure: peaks along each axis, and predictions as dashed lines."""
    with style.applied():
        figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.9), sharey=True, layout="constrained")
        for series in all_series:
            kind, axis = series[0].kind, series[0].axis
            (colour, marker), panel = KINDS[kind].look, axes[[*AXES].index(axis)]
            xs = [getattr(point, axis) for point in series]
            peaks = [point.resident / MIB for point in series]
            panel.loglog(xs, peaks, marker, ls="-", c=colour, label=kind)
            panel.loglog(xs, [point.predicted / MIB for point in series], "--", c=colour, lw=1.2)
            panel.set_xlabel(AXES[axis])
        axes[0].set_ylabel("peak memory of training (MiB)")
        layout.log_ticks(axes[0], axis="y")
        layout.log_ticks(axes[0], axis="x")
        layout.log_ticks(axes[1], axis="x")
        axes[0].plot([], [], "--", c="#3A3A3A", lw=1.2, label="predicted")
        entries = axes[0].get_legend_handles_labels()
        figure.legend(*entries, loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(path, dpi=160, metadata={"Software": None})


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--figure", type=Path, help="where to draw the peaks, a PNG")
    options = parser.parse_args(argv)
    all_series = measure_all()
    rows = [asdict(point) for point in itertools.chain(*all_series)]
    print(json.dumps(rows, indent=2) if options.json else table(all_series))
    if options.figure:
        draw(all_series, options.figure)


if __name__ == "__main__":
    main()
