"""Runs probes, as many at once as jobs will run, since these share caches and memory bandwidth."""

import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Protocol

import torch

# Seconds that a probe spends on each thing it measures, where that takes no longer by itself.
BUDGET = 0.4
# More jobs at once hardly share any more, and each probing process has its own PyTorch in memory.
_MOST_WORKERS = 8


@dataclass(frozen=True)
class Timing:
    """What a probe found.

    Attributes:
        seconds: for one of each of the probe's units.
        memory: bytes that its process has in use; 0 where that is not looked at.
    """

    seconds: tuple[float, ...]
    memory: int = 0


class Probe(Protocol):
    """A little of some work. Equal probes are run once, so they hold all that the time depends on.

    Attributes:
        on_gpu: whether the work holds the GPU, where one job runs at a time.
    """

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on the GPU, alone."""
        ...

    def measure(self) -> Timing:
        """Does the work; in a process with one thread."""
        ...


def measured(
    probes: Collection[Probe], *, num_workers: int, on_progress: Callable[[int], object]
) -> dict[Probe, Timing]:
    """Runs every probe once.

    Args:
        probes: what to measure.
        num_workers: processes at once; 0 measures in this one.
        on_progress: told the number of probes just done.

    Returns:
        The timing of each probe.
    """
    found: dict[Probe, Timing] = {}
    for on_gpu in (True, False):
        group = [probe for probe in dict.fromkeys(probes) if probe.on_gpu == on_gpu]
        workers = min(num_workers, _MOST_WORKERS, 1 if on_gpu else len(group))
        for probe, timing in _in_processes(group, workers) if workers else _in_this_one(group):
            found[probe] = timing
            on_progress(1)
    return found


def _in_this_one(probes: Collection[Probe]) -> Iterator[tuple[Probe, Timing]]:
    return ((probe, probe.measure()) for probe in probes)


def _in_processes(probes: Collection[Probe], workers: int) -> Iterator[tuple[Probe, Timing]]:
    # Fresh processes: threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_use_one_thread) as pool:
        waiting = {pool.submit(probe.measure): probe for probe in probes}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:  # there is no use in the others
            pool.shutdown(cancel_futures=True)
            raise


def _use_one_thread() -> None:
    torch.set_num_threads(1)


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

    first = timed(1)
    if first < BUDGET:  # the first time of all loads and allocates
        first = timed(1)
    units = max(2, min(16, int(BUDGET / max(first, 1e-9))))
    while (beyond := timed(units) - first) < BUDGET / 4:
        wanted = int(units * BUDGET / 2 / max(beyond, 1e-9))
        units = min(max(2 * units, wanted), 16 * units)
    if beyond < BUDGET:  # what disturbs a measurement makes it longer
        beyond = max(0.0, min(beyond, timed(units) - first))
    rate = beyond / (units - 1)
    return max(first - rate, 0.0), rate


def environment() -> dict[str, str]:
    """What programs are started with: one thread for every library, as jobs have."""
    names = ("OMP", "MKL", "OPENBLAS", "NUMEXPR")
    return {**os.environ, **{f"{name}_NUM_THREADS": "1" for name in names}}
