"""Runs probes, as many at once as jobs will run, since these share caches and memory bandwidth."""

import multiprocessing
import time
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from operator import methodcaller
from typing import Protocol

import torch

# Seconds that a probe spends on each thing it measures, where that takes no longer by itself.
BUDGET = 0.4
# More jobs at once hardly share any more, and each probing process has its own PyTorch in memory.
_MOST_WORKERS = 8
# For one of each of a probe's units.
Seconds = tuple[float, ...]


class Probe(Protocol):
    """A little of some work. Equal probes run once, so they hold all that the time depends on."""

    @property
    def device(self) -> str:
        """Where it runs: `cpu`, or `cuda`, where one job runs at a time."""
        ...

    def measure(self) -> Seconds:
        """Does the work; in a process with one thread."""
        ...


def measured(
    probes: Collection[Probe], *, num_workers: int, on_progress: Callable[[int], object]
) -> dict[Probe, Seconds]:
    """Runs every probe once.

    Args:
        probes: what to measure.
        num_workers: processes at once.
        on_progress: told the number of probes just done.

    Returns:
        What each probe found.
    """
    found: dict[Probe, Seconds] = {}
    context = multiprocessing.get_context("spawn")  # threads do not survive a fork
    for device, most in (("cuda", 1), ("cpu", _MOST_WORKERS)):
        group = list(dict.fromkeys(probe for probe in probes if probe.device == device))
        workers = min(num_workers, most)
        with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
            found_here = pool.map(methodcaller("measure"), group)
            for probe, seconds in zip(group, found_here, strict=True):
                found[probe] = seconds
                on_progress(1)
    return found


def clock(device: str) -> Callable[[], float]:
    """A clock, in seconds.

    On the host, processor time: a machine that has other things to do as well does not slow it. On
    a GPU, time as it passes, once all that was asked for is done.
    """
    if device != "cuda":
        return time.process_time

    def read() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return read


def seconds_per_unit(
    task: Callable[[int], object], *, now: Callable[[], float] = time.process_time
) -> tuple[float, float]:
    """How long a task takes: what it needs once, and for every unit of work.

    Args:
        task: does so many units of work, at least 1.
        now: the clock.

    Returns:
        Seconds once, and per unit.
    """

    def timed(units: int) -> float:
        start = now()
        task(units)
        return now() - start

    first, units = min(timed(1), timed(1)), 2  # the first time of all loads and allocates
    while (beyond := timed(units) - first) < BUDGET / 4:
        units *= 4
    rate = beyond / (units - 1)
    return max(first - rate, 0.0), rate
