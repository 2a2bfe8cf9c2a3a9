"""Probes: a little of some work, done on this machine to learn how long all of it takes."""

import multiprocessing
import time
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import methodcaller

import torch

from dpcanary.costs.shapes import Shape
from dpcanary.training.mechanism_stage import ReferenceStage

# Seconds that a probe spends on each thing it measures, where that takes no longer by itself.
BUDGET = 0.4
# More jobs at once hardly share any more, and each probing process has its own PyTorch in memory.
_MOST_WORKERS = 8
# For one of each of a probe's units.
Seconds = tuple[float, ...]


@dataclass(frozen=True)
class Probe:
    """A little of some work. Equal probes run once, so they hold all that the time depends on.

    Attributes:
        work: does it, in a process with one thread, and says how long each of its units takes.
        stage: what the job is told.
        shape: of the dataset.
        factor: by how much larger the job's batches are than the probe's.
        device: `cpu`, or `cuda`, where one job runs at a time.
        num_slots: of a run.
        runs: of a shard.
        at_once: runs in memory at once, or None for as many as are fastest.
        unit: what a canary's crafting is proportional to.
    """

    work: Callable[["Probe"], Seconds]
    stage: ReferenceStage
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
        """Seconds: of the processor, which other programs do not slow; on a GPU, elapsed."""
        if self.device != "cuda":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def seconds(self, task: Callable[[], object]) -> float:
        """How long a task takes, by the faster of two times: the first one loads and allocates."""
        times = []
        for _ in range(2):
            start = self.now()
            task()
            times.append(self.now() - start)
        return min(times)

    def seconds_per_unit(self, task: Callable[[int], object]) -> tuple[float, float]:
        """How long a task takes: what it needs once, and for each of so many units of work."""
        first, units = self.seconds(partial(task, 1)), 2
        while (beyond := self.seconds(partial(task, units)) - first) < BUDGET / 4:
            units *= 4
        rate = beyond / (units - 1)
        return max(first - rate, 0.0), rate * self.factor


def measured(
    probes: Collection[Probe], *, num_workers: int, on_progress: Callable[[int], object]
) -> dict[Probe, Seconds]:
    """Runs every probe once, as many together as jobs will run: these share memory bandwidth."""
    found: dict[Probe, Seconds] = {}
    context = multiprocessing.get_context("spawn")  # threads do not survive a fork
    for device, most in (("cuda", 1), ("cpu", _MOST_WORKERS)):
        group = [probe for probe in dict.fromkeys(probes) if probe.device == device]
        workers = min(num_workers, most)
        with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
            results = pool.map(methodcaller("measure"), group)
            for probe, seconds in zip(group, results, strict=True):
                found[probe] = seconds
                on_progress(1)
    return found
