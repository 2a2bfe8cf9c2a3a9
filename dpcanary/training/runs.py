"""The runs of a plan: trained in blocks that fit in memory, in several threads."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.core.devices import reproducible_convolutions
from dpcanary.data.canaries import CanarySet
from dpcanary.data.observations import Observation
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.training.block import Block
from dpcanary.training.dpsgd import DPSGD, state_tensors
from dpcanary.training.ensemble_plan import Plan
from dpcanary.training.gradient_path import GradientPath
from dpcanary.training.losses import record_losses
from dpcanary.training.training_settings import Loss

# Share of the free memory that blocks may use. The rest is for allocations that are not counted.
_SHARE = 0.5
_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device; on the host, within the limits of the control groups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([int(psutil.virtual_memory().available), *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """What each limited control group (version 2) of this process, such as SLURM's, has left."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:  # not Linux
        return
    groups = [Path(line.removeprefix("0::/")) for line in lines if line.startswith("0::/")]
    for group in [*groups, *(parent for path in groups for parent in path.parents)]:
        folder = _CGROUP / group
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            counts = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
        except OSError:  # the group does not count memory
            continue
        if limit != "max":  # the kernel frees inactive pages of files on demand
            yield max(0, int(limit) - used + int(counts.get("inactive_file", 0)))


def runs_that_fit(
    *, bytes_per_run: int, free: int, num_workers: int, num_runs: int, together: int | None
) -> int:
    """Runs of a block: as many as are fastest together, fit, and keep every worker busy.

    More than `together` in a block are no faster; None if they always are.
    """
    fitting = int(_SHARE * free / num_workers) // max(1, bytes_per_run)
    shared_out = -(-num_runs // num_workers)
    return max(1, min(fitting, shared_out, together or num_runs))


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # PyTorch's host allocator and CUDA's libraries raise plain RuntimeErrors.
    messages = ("can't allocate memory", "ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(words in str(error) for words in messages)


# Test records are evaluated in parts: at most this many bytes, and this many records, at once.
_BYTES_AT_ONCE = 2**29
_RECORDS_AT_ONCE = 512


@torch.no_grad()
def measure_of(
    path: GradientPath, parameters: Tensor, records: Records, loss: Loss
) -> NDArray[np.float32]:
    """How well each model predicts the labels of test records, shape (runs,).

    It is the share of records that are classified correctly. For squared error it is R^2: 1 minus
    the sum of squared errors over that of predicting the mean of the labels.

    Args:
        path: computes the outputs.
        parameters: shape (runs, parameters), in the module's order.
        records: the test records.
        loss: that the models were trained with.
    """
    buffer = path.encode(parameters)
    features = torch.from_numpy(records.features)
    if features.is_floating_point() or path.table.features.is_floating_point():
        features = features.float()
    per_record = len(buffer) * (path.bytes_per_run(2) - path.bytes_per_run(1))
    at_once = max(1, min(_RECORDS_AT_ONCE, _BYTES_AT_ONCE // max(1, per_record)))
    labels = torch.from_numpy(records.labels).to(buffer.device)
    total = torch.zeros(len(buffer), device=buffer.device)
    for first in range(0, len(labels), at_once):
        part = slice(first, first + at_once)
        outputs = path.logits(buffer, path.lift(features[part].to(buffer.device)))
        if not loss.is_of_classes:
            total += record_losses(outputs, labels[part], loss).sum(dim=1)
            continue
        binary = outputs.shape[-1] == 1
        predicted = (outputs[..., 0] > 0).long() if binary else outputs.argmax(dim=-1)
        total += (predicted == labels[part]).sum(dim=1)
    if loss.is_of_classes:
        return (total / len(labels)).cpu().numpy()
    spread = float(np.square(records.labels - records.labels.mean(dtype=np.float64)).sum())
    return np.asarray(1 - total.cpu().numpy() / (spread or np.nan), np.float32)


def baseline_of(records: Records, loss: Loss) -> float | None:
    """What `measure_of` gives for the best constant prediction; None without records."""
    if not len(records):
        return None
    return float(np.bincount(records.labels).max()) / len(records) if loss.is_of_classes else 0.0


_LOG = logging.getLogger(__name__)
# Final models that are evaluated or returned are decoded this many at once.
_MODELS_AT_ONCE = 64
# Called with the number of model-steps just done; below 0 for steps that must be repeated.
Progress = Callable[[int], object]


def no_progress(model_steps: int) -> None:
    """Shows nothing."""


@dataclass(frozen=True)
class EnsembleResult:
    """What is kept of the runs.

    Attributes:
        dpsgd: the mechanism.
        observe: what is kept.
        canaries: what was inserted.
        runs: shape (runs,), their indices.
        worlds: shape (runs, slots), 0 or 1; the index of the value where slots hold candidates.
        observations: shape (runs, steps, slots) for `change`, `value` and `gradient_norm`; (runs,
            steps, slots, 2) for `change_and_length`; (runs, steps, slots, 2, outputs) for `logits`;
            (runs, steps, slots, most steps between two recorded ones) for `noisy_gradients`.
        test_accuracy: shape (runs,), by `measure_of` the last step's models, so R^2 for squared
            error; NaN without test records.
        parameters: shape (runs, parameters), in the module's order, of the last step's models;
            None if not asked for.
    """

    dpsgd: DPSGD
    observe: Observation
    canaries: CanarySet
    runs: NDArray[np.int64]
    worlds: NDArray[np.int64]
    observations: NDArray[np.float32]
    test_accuracy: NDArray[np.float32]
    parameters: NDArray[np.float32] | None


def train_runs(
    plan: Plan,
    runs: Sequence[int],
    *,
    num_threads: int = 1,
    runs_at_once: int | None = None,
    keep_parameters: bool = False,
    on_progress: Progress = no_progress,
) -> EnsembleResult:
    """Trains some of the runs of a plan, whatever worlds they are in.

    The arguments are those of `ensemble.train_ensemble`.
    """
    workers = num_threads if plan.device.type == "cpu" else 1
    at_once = runs_at_once or _runs_at_once(plan, num_runs=len(runs), workers=workers)
    _LOG.info("%s path, %d runs at once on %s", plan.path.name, at_once, plan.device)
    blocks = [runs[first : first + at_once] for first in range(0, len(runs), at_once)]
    trainer = _Trainer(plan, keep_parameters, on_progress)
    with _torch_set_up(plan.device), ThreadPoolExecutor(workers) as pool:
        done = [part for parts in pool.map(trainer.train, blocks) for part in parts]
    worlds, observations, accuracy, *kept = map(np.concatenate, zip(*done, strict=True))
    canaries, labels = plan.slots.canaries, plan.records.labels
    return EnsembleResult(
        dpsgd=plan.dpsgd,
        observe=plan.observe,
        canaries=CanarySet(canaries, tuple(labels[canary.target].item() for canary in canaries)),
        runs=np.asarray(runs, np.int64),
        worlds=worlds,
        observations=observations,
        test_accuracy=accuracy,
        parameters=kept[0] if kept else None,
    )


def _runs_at_once(plan: Plan, *, num_runs: int, workers: int) -> int:
    count = len(plan.records)
    shared = plan.dpsgd.sample_rate >= plan.path.shared_above and not plan.dpsgd.batch_size
    size = count if shared else round(plan.dpsgd.expected_batch_size(count))
    # Parameters and the optimiser's state; if lengths are observed, also the start and the change.
    states = 1 + state_tensors(plan.dpsgd.optimizer)
    states += 2 * (plan.observe is Observation.CHANGE_AND_LENGTH)
    numbers = states * plan.path.num_parameters
    if plan.observe is Observation.NOISY_GRADIENTS:
        numbers += len(plan.slots) * max(plan.dpsgd.steps_between)
    return runs_that_fit(
        bytes_per_run=plan.path.bytes_per_run(size) + 4 * numbers,
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

    def train(self, runs: Sequence[int]) -> list[list[NDArray[Any]]]:
        """Trains a block, or its halves if it does not fit; returns the results of each part."""
        done = 0

        def report(model_steps: int) -> None:
            nonlocal done
            done += model_steps
            with self._lock:
                self._on_progress(model_steps)

        try:
            return [self._trained(runs, lambda: report(len(runs)))]
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
        # Outside of the handler, since the error's traceback holds the block's memory.
        report(-done)
        torch.cuda.empty_cache()  # does nothing where no GPU is used
        if len(runs) == 1:
            raise InputError(
                f"one run alone does not fit in the memory of {self._plan.device}: use a smaller"
                " model or a lower sample_rate"
            )
        half = len(runs) // 2
        _LOG.warning("out of memory with %d runs at once: trying %d", len(runs), half)
        return self.train(runs[:half]) + self.train(runs[half:])

    def _trained(self, runs: Sequence[int], on_step: Callable[[], None]) -> list[NDArray[Any]]:
        """Worlds, observations, accuracy, and parameters if they are kept."""
        plan = self._plan
        block = Block(plan, runs)
        observations = block.train(on_step)
        accuracy = np.full(len(runs), np.nan, np.float32)
        test = plan.test_records or None  # an empty set counts as none
        kept = []
        for first in range(0, len(runs) if test or self._keep else 0, _MODELS_AT_ONCE):
            some = slice(first, first + _MODELS_AT_ONCE)
            models = block.parameters(some)
            if test:
                accuracy[some] = measure_of(plan.evaluator, models, test, plan.dpsgd.loss)
            if self._keep:
                kept.append(models.cpu().numpy())
        return [block.worlds, observations, accuracy, *([np.concatenate(kept)] if kept else [])]


@contextmanager
def _torch_set_up(device: torch.device) -> Iterator[None]:
    """PyTorch's settings for training.

    On the host, PyTorch uses one thread in each worker, since the workers train in parallel.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        with reproducible_convolutions():
            yield
    finally:
        torch.set_num_threads(before)
