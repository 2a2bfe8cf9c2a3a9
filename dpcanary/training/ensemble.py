"""DP-SGD for many models at once, each with its own batches and noise."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpcanary.canaries import Canary
from dpcanary.devices import chosen_device
from dpcanary.errors import InputError
from dpcanary.observations import Observation
from dpcanary.records import Records
from dpcanary.training.accuracy import accuracy_of
from dpcanary.training.block import Block
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.initialisation import NO_RUN
from dpcanary.training.memory import free_bytes, is_out_of_memory, release, runs_that_fit
from dpcanary.training.optimizers import state_tensors
from dpcanary.training.options import Initialisation, Precision, WorldAssignment
from dpcanary.training.plan import Plan, make_plan
from dpcanary.training.slots import default_observation
from dpcanary.worlds import parity

_LOG = logging.getLogger(__name__)
# Models that are written out whole at once, when they are done.
_MODELS_AT_ONCE = 64
# Told the number of model-steps just done; below 0 for those done in vain.
Progress = Callable[[int], object]


def _no_progress(model_steps: int) -> None:
    """Shows nothing."""


@dataclass(frozen=True)
class EnsembleResult:
    """What is kept of the runs.

    Attributes:
        runs: shape (runs,), their indices.
        worlds: shape (runs, slots), 0 or 1.
        observations: shape (runs, steps, slots) for `change`; (runs, steps, slots, 2) for
            `change_and_length`; (runs, steps, slots, 2, outputs) for `logits`.
        test_accuracy: shape (runs,), of the last step's models; NaN without test records.
        parameters: shape (runs, parameters), in the module's order, of the last step's models;
            None if not asked for.
    """

    runs: NDArray[np.int64]
    worlds: NDArray[np.int64]
    observations: NDArray[np.float32]
    test_accuracy: NDArray[np.float32]
    parameters: NDArray[np.float32] | None


def train_ensemble(
    *,
    module: nn.Module,
    records: Records,
    canary: Canary | Sequence[Canary],
    dpsgd: DPSGD,
    runs: int | Iterable[int],
    seed: int,
    test_records: Records | None = None,
    observe: Observation | str | None = None,
    worlds: WorldAssignment | str | None = None,
    initialisation: Initialisation | str = Initialisation.FIXED,
    precision: Precision | str = Precision.FLOAT32,
    device: torch.device | str = "cpu",
    num_threads: int = 1,
    runs_at_once: int | None = None,
    keep_parameters: bool = False,
    rotate: bool = True,
    on_progress: Progress = _no_progress,
) -> EnsembleResult:
    """Trains one model per run, on one or the other of two neighbouring datasets.

    What a run draws depends on the seed and its index alone: not on the runs beside it, the
    threads, or the device.

    Args:
        module: the architecture, of any kind without batch statistics. Linear heads and
            perceptrons have fast paths of their own.
        records: the private records.
        canary: what is inserted; a list gives a run as many slots. See `slots.slots_of`.
        dpsgd: settings of the mechanism.
        runs: how many runs, or their indices, which fix each run's world and randomness. With
            one slot, even indices are in world 0 and odd ones in world 1.
        seed: the audit's seed.
        test_records: the records that accuracy is measured on; by default none is measured.
        observe: what is kept of a run; by default what goes with the canary.
        worlds: how the worlds of slots are assigned; by default runs alternate with one slot,
            and fair coins are thrown for several.
        initialisation: where runs start; by default from the module's own parameters.
        precision: of matrix products.
        device: where to compute.
        num_threads: threads of the host, each of which trains runs of its own.
        runs_at_once: runs in memory at once, per thread; by default as many as are fastest
            together and fit in half of the free memory.
        keep_parameters: whether to return the models.
        rotate: whether linear heads may be trained in the span of their records, which changes no
            distribution; see `rotation`.
        on_progress: told the number of model-steps just done (below 0 for those done in vain).

    Raises:
        InputError: if an argument is out of its range, the module cannot be trained, a canary
            does not fit, a run diverges (names the run and the step), or one run alone does not
            fit in memory.
    """
    canaries = [canary] if isinstance(canary, Canary) else list(canary)
    chosen = checked_runs(runs)
    assignment = _assignment(worlds, len(canaries))
    if assignment is WorldAssignment.ALTERNATE:
        _check_both_worlds(chosen)
    plan = make_plan(
        module=module,
        records=records,
        test_records=test_records,
        canaries=canaries,
        dpsgd=dpsgd,
        seed=seed,
        observe=default_observation(canaries) if observe is None else Observation(observe),
        worlds=assignment,
        initialisation=Initialisation(initialisation),
        precision=Precision(precision),
        device=chosen_device(device),
        rotate=rotate,
    )
    return train_runs(
        plan,
        chosen,
        num_threads=num_threads,
        runs_at_once=runs_at_once,
        keep_parameters=keep_parameters,
        on_progress=on_progress,
    )


def train_runs(
    plan: Plan,
    runs: Sequence[int],
    *,
    num_threads: int = 1,
    runs_at_once: int | None = None,
    keep_parameters: bool = False,
    on_progress: Progress = _no_progress,
) -> EnsembleResult:
    """Trains some of the runs of a plan, whatever worlds they are in.

    Args:
        plan: what the runs share.
        runs: run indices, at least one.
        num_threads: see `train_ensemble`, as for the others.
        runs_at_once: see there.
        keep_parameters: see there.
        on_progress: see there.

    Raises:
        InputError: if a run diverges, or one run alone does not fit in memory.
    """
    workers = num_threads if plan.device.type == "cpu" else 1
    at_once = runs_at_once or _runs_at_once(plan, num_runs=len(runs), workers=workers)
    _LOG.info("%s path, %d runs at once on %s", plan.path.name, at_once, plan.device)
    blocks = [runs[first : first + at_once] for first in range(0, len(runs), at_once)]
    trainer = _Trainer(plan, keep_parameters, on_progress)
    with _torch_set_up(plan.device), ThreadPoolExecutor(workers) as pool:
        done = [result for results in pool.map(trainer.train, blocks) for result in results]
    kept = [result.parameters for result in done if result.parameters is not None]
    return EnsembleResult(
        runs=np.concatenate([result.runs for result in done]),
        worlds=np.concatenate([result.worlds for result in done]),
        observations=np.concatenate([result.observations for result in done]),
        test_accuracy=np.concatenate([result.test_accuracy for result in done]),
        parameters=np.concatenate(kept) if kept else None,
    )


def checked_runs(runs: int | Iterable[int]) -> list[int]:
    """Run indices from their number or from themselves.

    Raises:
        InputError: if there is none, one is out of range, or one is there twice.
    """
    found = [*range(int(runs))] if isinstance(runs, Integral) else [int(run) for run in runs]
    if not found or min(found) < 0 or max(found) >= NO_RUN:
        raise InputError(f"runs must be indices from 0 to {NO_RUN - 1}, and at least one")
    if len(set(found)) < len(found):
        twice, _ = Counter(found).most_common(1)[0]
        raise InputError(f"run {twice} is there twice: it would be the same model again")
    return found


def _check_both_worlds(runs: Sequence[int]) -> None:
    if len({*parity(np.array(runs)).tolist()}) < 2:
        raise InputError(
            f"all runs are in world {runs[0] % 2}, so nothing can be told apart: even indices are"
            " in world 0, odd ones in world 1; give runs of both"
        )


def _assignment(worlds: WorldAssignment | str | None, num_slots: int) -> WorldAssignment:
    if worlds is None:
        return WorldAssignment.COINS if num_slots > 1 else WorldAssignment.ALTERNATE
    return WorldAssignment(worlds)


def _runs_at_once(plan: Plan, *, num_runs: int, workers: int) -> int:
    count = len(plan.records)
    shared = plan.dpsgd.sample_rate >= plan.path.shared_above and not plan.dpsgd.batch_size
    size = count if shared else round(plan.dpsgd.expected_batch_size(count))
    # Parameters, and what the optimiser keeps; a start and a change whose length is observed.
    states = 1 + state_tensors(plan.dpsgd.optimizer)
    states += 2 * (plan.observe is Observation.CHANGE_AND_LENGTH)
    return runs_that_fit(
        bytes_per_run=plan.path.bytes_per_run(size) + 4 * states * plan.path.num_parameters,
        free=free_bytes(plan.device),
        num_workers=workers,
        num_runs=num_runs,
        together=plan.path.runs_together,
    )


class _Trainer:
    """Trains blocks, in several threads at once."""

    def __init__(self, plan: Plan, keep_parameters: bool, on_progress: Progress) -> None:
        self._plan, self._keep, self._on_progress = plan, keep_parameters, on_progress
        self._lock = threading.Lock()

    def train(self, runs: Sequence[int]) -> list[EnsembleResult]:
        """Trains a block, or its halves if it does not fit in memory."""
        done = 0

        def on_step() -> None:
            nonlocal done
            done += len(runs)
            self._report(len(runs))

        try:
            return [self._trained(runs, on_step)]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler, since the error's traceback holds the block's memory.
        self._report(-done)
        release(self._plan.device)
        if len(runs) == 1:
            raise InputError(
                f"one run alone does not fit in the memory of {self._plan.device}: use a smaller"
                " model or a lower sample_rate"
            )
        half = len(runs) // 2
        _LOG.warning("out of memory with %d runs at once: trying %d", len(runs), half)
        return self.train(runs[:half]) + self.train(runs[half:])

    def _trained(self, runs: Sequence[int], on_step: Callable[[], None]) -> EnsembleResult:
        plan = self._plan
        block = Block(plan, runs)
        observations = block.train(on_step)
        accuracy = np.full(len(runs), np.nan, np.float32)
        test = plan.test_records if plan.test_records else None  # none, or an empty set
        kept = []
        for first in range(0, len(runs) if test or self._keep else 0, _MODELS_AT_ONCE):
            some = slice(first, first + _MODELS_AT_ONCE)
            models = block.parameters(some)
            if test:
                accuracy[some] = accuracy_of(plan.evaluator, models, test)
            if self._keep:
                kept.append(models.cpu().numpy())
        parameters = np.concatenate(kept) if kept else None
        indices = np.asarray(runs, np.int64)
        return EnsembleResult(indices, block.worlds, observations, accuracy, parameters)

    def _report(self, model_steps: int) -> None:
        with self._lock:
            self._on_progress(model_steps)


@contextmanager
def _torch_set_up(device: torch.device) -> Iterator[None]:
    """PyTorch's settings for training.

    On the host, PyTorch uses one thread in each worker: the workers train other runs, and none
    waits for another. On a GPU, convolutions are in float32, which PyTorch would round to 10 bits
    by default.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        with torch.backends.cudnn.flags(allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)
