"""DP-SGD for many models at once, each with its own batches and noise."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpcanary.canaries import AnyCanary, DirectionCanary
from dpcanary.errors import InputError
from dpcanary.training.accuracy import accuracy_of
from dpcanary.training.block import Block, Plan
from dpcanary.training.initialisation import NO_RUN
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.memory import free_bytes, is_out_of_memory, release, runs_that_fit
from dpcanary.training.optimizers import state_tensors
from dpcanary.training.paths.choose import basis_of, path_of
from dpcanary.training.placement import placement_of, table_of
from dpcanary.vocabulary import Initialisation, Precision

_LOG = logging.getLogger(__name__)
# Models that are written out whole at once, when they are done.
_MODELS_AT_ONCE = 64


@dataclass(frozen=True)
class EnsembleResult:
    """What is kept of the runs.

    Attributes:
        observations: shape (runs, steps) for a canary in one coordinate: its change; (runs, steps,
            2) for a canary in any direction: the change along it, and the length of the whole
            change; (runs, steps, 2, outputs) for an input canary: logits of target and canary.
        test_accuracy: shape (runs,), of the last step's models; NaN without test records.
        parameters: shape (runs, parameters), in the module's order, of the last step's models, or
            None if not asked for.
    """

    observations: NDArray[np.float32]
    test_accuracy: NDArray[np.float32]
    parameters: NDArray[np.float32] | None


def train_ensemble(
    *,
    module: nn.Module,
    records: Records,
    canary: AnyCanary,
    dpsgd: DPSGD,
    runs: Sequence[int],
    seed: int,
    device: torch.device,
    initialisation: Initialisation = Initialisation.ZEROS,
    precision: Precision = Precision.FLOAT32,
    num_threads: int = 1,
    runs_at_once: int | None = None,
    keep_parameters: bool = False,
    rotate: bool = True,
    on_progress: Callable[[int], object] = lambda model_steps: None,
) -> EnsembleResult:
    """Trains one model per run.

    What a run draws depends on the seed and its index alone: not on the runs beside it, the
    threads, or the device.

    Args:
        module: the architecture, of any kind without batch statistics; linear heads and
            perceptrons have fast paths of their own.
        records: private and test records.
        canary: what is inserted; see `placement_of`.
        dpsgd: settings of the mechanism.
        runs: run indices, which fix each run's world and randomness.
        seed: the audit's seed.
        device: where to compute.
        initialisation: where runs start.
        precision: of matrix products.
        num_threads: threads of the host, each of which trains runs of its own.
        runs_at_once: runs in memory at once, per thread; by default as many as are fastest
            together and fit in half of the free memory.
        keep_parameters: whether to return the models.
        rotate: whether linear heads may be trained in the span of their records, which changes no
            distribution; see `rotation`.
        on_progress: told the number of model-steps just done (below 0 for those done in vain).

    Raises:
        InputError: if the module cannot be trained, the canary does not fit, a run diverges (names
            the run and the step), or one run alone does not fit in memory.
    """
    if len(runs) == 0 or min(runs) < 0 or max(runs) >= NO_RUN:
        raise InputError(f"runs must be indices from 0 to {NO_RUN - 1}, and at least one")
    plan = _plan(module, records, canary, dpsgd, seed, device, initialisation, precision, rotate)
    workers = num_threads if device.type == "cpu" else 1
    at_once = runs_at_once or _runs_at_once(plan, num_runs=len(runs), workers=workers)
    _LOG.info("%s path, %d runs at once on %s", plan.path.name, at_once, device)
    blocks = [runs[first : first + at_once] for first in range(0, len(runs), at_once)]
    job = _Job(plan, keep_parameters, on_progress)
    with _torch_set_up(device), ThreadPoolExecutor(workers) as pool:
        done = [result for results in pool.map(job.train, blocks) for result in results]
    kept = [result.parameters for result in done if result.parameters is not None]
    return EnsembleResult(
        observations=np.concatenate([result.observations for result in done]),
        test_accuracy=np.concatenate([result.test_accuracy for result in done]),
        parameters=np.concatenate(kept) if kept else None,
    )


def _plan(
    module: nn.Module,
    records: Records,
    canary: AnyCanary,
    dpsgd: DPSGD,
    seed: int,
    device: torch.device,
    initialisation: Initialisation,
    precision: Precision,
    rotate: bool,
) -> Plan:
    table = table_of(records, canary, device)
    count = sum(parameter.numel() for parameter in module.parameters())
    placement = placement_of(canary, records=records, dpsgd=dpsgd, num_parameters=count)
    evaluator = path_of(module, table, dpsgd=dpsgd, precision=precision, basis=None)
    path, basis = evaluator, None
    if rotate:
        basis = basis_of(
            module, table, placement, canary=canary, dpsgd=dpsgd, initialisation=initialisation
        )
    if basis is not None:
        path = path_of(module, table, dpsgd=dpsgd, precision=precision, basis=basis)
    return Plan(
        module=module,
        records=records,
        canary=canary,
        dpsgd=dpsgd,
        table=table,
        placement=placement,
        path=path,
        evaluator=evaluator,
        basis=basis,
        initialisation=initialisation,
        seed=seed,
        device=device,
    )


def _runs_at_once(plan: Plan, *, num_runs: int, workers: int) -> int:
    count = len(plan.records.labels)
    shared = plan.dpsgd.sample_rate >= plan.path.shared_above and not plan.dpsgd.batch_size
    size = count if shared else round(plan.dpsgd.expected_batch_size(count))
    # Parameters, and what the optimiser keeps; a direction's start and change.
    states = 1 + state_tensors(plan.dpsgd.optimizer)
    states += 2 * isinstance(plan.canary, DirectionCanary)
    return runs_that_fit(
        bytes_per_run=plan.path.bytes_per_run(size) + 4 * states * plan.path.num_parameters,
        free=free_bytes(plan.device),
        num_workers=workers,
        num_runs=num_runs,
        together=plan.path.runs_together,
    )


class _Job:
    """Trains blocks, in several threads at once."""

    def __init__(
        self, plan: Plan, keep_parameters: bool, on_progress: Callable[[int], object]
    ) -> None:
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
        # Out of the handler, whose traceback held the block's memory.
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
        measured, kept = len(plan.records.test_labels) > 0, []
        for first in range(0, len(runs) if measured or self._keep else 0, _MODELS_AT_ONCE):
            some = slice(first, first + _MODELS_AT_ONCE)
            models = block.parameters(some)
            if measured:
                accuracy[some] = accuracy_of(plan.evaluator, models, plan.records)
            if self._keep:
                kept.append(models.cpu().numpy())
        return EnsembleResult(observations, accuracy, np.concatenate(kept) if kept else None)

    def _report(self, model_steps: int) -> None:
        with self._lock:
            self._on_progress(model_steps)


@contextmanager
def _torch_set_up(device: torch.device) -> Iterator[None]:
    """On the host, PyTorch's own threads rest: each worker trains other runs, and none waits.

    On a GPU, convolutions are in float32, which PyTorch would round to 10 bits by default.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        with torch.backends.cudnn.flags(allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)
