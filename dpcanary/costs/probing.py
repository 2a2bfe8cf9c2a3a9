"""Probes: a small part of some work, done here to estimate how long all of it takes."""

import multiprocessing
import time
import timeit
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from dpcanary.closed_model import ClosedModel
from dpcanary.costs.shapes import Shape

# Seconds that a probe spends on each thing it measures, unless a single unit takes longer.
BUDGET = 0.4
# Beyond this number, jobs hardly slow each other further; each process holds its own PyTorch.
_MOST_WORKERS = 8
# The time of one of each of a probe's units.
Seconds = tuple[float, ...]


@dataclass(frozen=True)
class Probe:
    """A small part of some work. Equal probes run once: all that affects the time is in here.

    Attributes:
        work: does it in a process with one thread, and returns the time of each unit.
        stage: the settings of the job.
        shape: of the dataset.
        factor: size of the job's batches over that of the probe's.
        device: `cpu` or `cuda`; on `cuda` one job runs at a time.
        num_slots: slots per run.
        runs: runs per shard.
        at_once: runs in memory at once; None for the fastest number.
        unit: what the time to craft canaries is proportional to.
    """

    work: Callable[["Probe"], Seconds]
    stage: ClosedModel
    shape: Shape
    factor: float
    device: str
    num_slots: int = 1
    runs: int = 1
    at_once: int | None = None
    unit: str = ""

    def measure(self) -> Seconds:
        """Does the work."""
        return self.work(self)

    def now(self) -> float:
        """Seconds of processor time, which other programs do not affect; on a GPU, elapsed ones."""
        if self.device != "cuda":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def seconds(self, task: Callable[[], object]) -> float:
        """How long a task takes: the faster of two times, as the first one loads and allocates."""
        return min(timeit.repeat(task, timer=self.now, repeat=2, number=1))

    def seconds_per_unit(self, task: Callable[[int], object]) -> tuple[float, float]:
        """How long a task takes: what it needs once, and for each unit of its work."""
        first, units = self.seconds(partial(task, 1)), 2
        while (beyond := self.seconds(partial(task, units)) - first) < BUDGET / 4:
            units *= 4
        rate = beyond / (units - 1)
        return max(first - rate, 0.0), rate * self.factor


def measured(
    probes: Collection[Probe], *, num_workers: int, on_progress: Callable[[int], object]
) -> dict[Probe, Seconds]:
    """Runs each probe once, as many at a time as jobs, since these share memory bandwidth."""
    unique = list(dict.fromkeys(probes))
    on_gpu = any(probe.device == "cuda" for probe in unique)
    workers = 1 if on_gpu else min(num_workers, _MOST_WORKERS)
    context = multiprocessing.get_context("spawn")  # threads do not survive a fork
    found: dict[Probe, Seconds] = {}
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        for probe, seconds in zip(unique, pool.map(Probe.measure, unique), strict=True):
            found[probe] = seconds
            on_progress(1)
    return found
