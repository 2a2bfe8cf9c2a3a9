"""Trainings side by side, each in a process of its own."""

import multiprocessing
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import torch

from dpcanary.errors import InputError
from dpcanary.own_training.one_run import OwnRun, Train, train_one


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_all(
    train: Train,
    runs: Sequence[int],
    *,
    seed: int,
    num_workers: int,
    on_run: Callable[[OwnRun], object],
) -> None:
    """Trains models; each is reported as soon as it is there.

    Args:
        train: the user's function.
        runs: indices.
        seed: of the audit.
        num_workers: processes; one trains in this process.
        on_run: called with every finished run, also after another one has failed.

    Raises:
        InputError: if a training fails, or other processes cannot import it.
    """
    one = partial(train_one, train, seed=seed)
    if num_workers <= 1:
        for run in runs:
            on_run(one(run=run))
        return
    _check_importable(train)
    # Forked processes would share the state of PyTorch's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context=context, initializer=_use_one_thread) as pool:
        waiting = [pool.submit(one, run=run) for run in runs]
        failure = _collected(waiting, on_run)
    if failure:
        raise failure


def _collected(
    waiting: Sequence["Future[OwnRun]"], on_run: Callable[[OwnRun], object]
) -> InputError | None:
    """Reports finished runs; after a failure, those that were begun. Returns the first failure."""
    failure: InputError | None = None
    try:
        for done in as_completed(waiting):
            if done.cancelled():
                continue
            try:
                on_run(done.result())
            except BrokenProcessPool:
                failure = failure or InputError(
                    "a process that trains models has died: it ran out of memory, or it imports a"
                    ' script that calls this without `if __name__ == "__main__":`. Mend that, or'
                    " give num_workers=1"
                )
            except InputError as error:
                failure = failure or error
            if failure:
                _cancel(waiting)
    except KeyboardInterrupt:
        _cancel(waiting)
        raise
    return failure


def _cancel(waiting: Sequence["Future[OwnRun]"]) -> None:
    for one in waiting:
        one.cancel()


def _check_importable(train: Train) -> None:
    try:
        pickle.dumps(train)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"other processes cannot import the training ({error}): define it at the top of a"
            " module or script, or give num_workers=1"
        ) from None


def _use_one_thread() -> None:
    torch.set_num_threads(1)
