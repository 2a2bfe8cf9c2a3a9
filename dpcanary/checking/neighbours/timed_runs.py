"""Runs a training once under the check."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, time
from types import FrameType
from typing import Any

import numpy as np
import torch

from dpcanary.checking.neighbours.opacus_sums import optimizers_recorded
from dpcanary.checking.neighbours.random_states import same_random_numbers
from dpcanary.checking.neighbours.records_seen import Batch, loaders_noted
from dpcanary.checking.neighbours.released_values import released
from dpcanary.checking.neighbours.session import TIME, Ended, Run, Session, begin, finish
from dpcanary.checking.neighbours.tape import Array
from dpcanary.checking.neighbours.values_read import values_noted

Train = Callable[[Any], Any]


def run_once(
    train: Train, dataset: Any, session: Session, *, seed: int, seconds: float | None
) -> Run:
    """What is noted of one training.

    Args:
        train: the training.
        dataset: a copy of its own.
        session: takes the notes.
        seed: of the generators of the process.
        seconds: after which the training is ended; None if it may take any time.
    """
    run = session.run
    begin(session)
    start, since = perf_counter(), time()
    try:
        with (
            same_random_numbers(seed),
            loaders_noted(session.reader, lambda own: own is dataset),
            optimizers_recorded(session),
            values_noted(session.reads),
            _limit(seconds, session),
        ):
            result = train(dataset)
            session.end()
        if not run.ended:
            run.released, run.not_compared = released(result, since)
    except Ended as end:
        run.ended = end.why
    except (Exception, SystemExit) as error:
        if not run.ended:
            run.error = error
    finally:
        finish()
        run.reads = session.reads.values
        run.seconds = perf_counter() - start
    if session.is_large:  # models of Opacus are freed by the collector alone
        gc.collect()
    return run


@contextmanager
def _limit(seconds: float | None, session: Session) -> Iterator[None]:
    """Ends what is inside after some time, in the main thread of systems with alarm signals."""
    is_main = threading.current_thread() is threading.main_thread()
    if seconds is None or not is_main or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_: int, __: FrameType | None) -> None:
        # Where the training swallows the exception, the next step ends it, or the next alarm.
        session.stop(TIME)

    before = signal.signal(signal.SIGALRM, stop)
    began = perf_counter()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        # A timer of the caller's goes on; one that should have rung meanwhile rings at once.
        left = max(left - (perf_counter() - began), 1e-3) if left else 0.0
        if left:
            signal.setitimer(signal.ITIMER_REAL, left, interval)


class Group:
    """The processes of a training that add up their gradients; alone, one process."""

    def __init__(self) -> None:
        distributed = torch.distributed
        self.is_several = (
            distributed.is_available()
            and distributed.is_initialized()
            and distributed.get_world_size() > 1
        )

    def add_up(self, values: Array) -> Array:
        """The sum of an array over all processes."""
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if torch.distributed.get_backend() == "nccl":
            tensor = tensor.cuda()
        torch.distributed.all_reduce(tensor)
        return np.asarray(tensor.cpu().numpy())

    def all_batches(self, batches: Sequence[Batch]) -> list[Batch]:
        """The batches of all processes, in their order."""
        gathered: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(gathered, list(batches))
        return [batch for of_process in gathered for batch in of_process]
