"""The batches of a block of runs, step by step, each a pure function of seed, run and step."""

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.errors import InputError
from dpcanary.randomness import Purpose, generator, philox_key
from dpcanary.training.inputs import DPSGD
from dpcanary.training.kernels.philox import sample_mask, sample_rows
from dpcanary.training.paths.path import Batch, Table
from dpcanary.training.placement import Placement
from dpcanary.vocabulary import Sampling

# Standard deviations above the mean that a sample's size may be: beyond 1e-22.
_ROOM = 10


class Batches(Protocol):
    """What each step trains on."""

    def at(self, step: int) -> tuple[Batch, Tensor]:
        """The batch of a step (0 for the first), and whether the canary comes in.

        Returns:
            The batch, and shape (runs,): 1 where the canary's place is in the batch, else 0.
        """
        ...


def batches_of(
    *, table: Table, placement: Placement, dpsgd: DPSGD, seed: int, runs: Tensor, shared: bool
) -> Batches:
    """The batches of some runs.

    Args:
        table: the records.
        placement: what stands in the canary's place.
        dpsgd: says how batches are chosen.
        seed: the audit's seed.
        runs: run indices, shape (runs,), on the device of the table.
        shared: whether Poisson batches are weights on all records, or lists of each run's own.
    """
    if dpsgd.sampling is Sampling.FIXED:
        return FixedBatches(table, placement, dpsgd, seed, runs)
    if shared:
        return PoissonWeights(table, placement, dpsgd, seed, runs)
    return PoissonRows(table, placement, dpsgd, seed, runs)


class _Shared:
    """Batches that all runs look at: the records, and the canary's row behind them."""

    def __init__(self, table: Table, placement: Placement, runs: Tensor) -> None:
        self._table, self._placement = table, placement
        replacements = torch.from_numpy(placement.rows_of(runs.cpu().numpy())).to(runs.device)
        target = -1 if placement.target is None else placement.target
        self._keeps_target = replacements.eq(target).float()
        self._takes_canary = replacements.eq(table.canary).float()
        self._has_row = table.canary in placement.rows

    def _weights(self, ordinary: Tensor, place: int | None, inserted: Tensor) -> Tensor:
        """Weights of the records, the target's in a place; the canary's row, if any, is last."""
        weights = ordinary
        if self._has_row:
            weights = torch.cat([ordinary, (inserted * self._takes_canary).unsqueeze(1)], dim=1)
        if place is not None:
            weights[:, place] = inserted * self._keeps_target
        return weights


class PoissonWeights(_Shared):
    """Poisson samples as weights on all records."""

    def __init__(
        self, table: Table, placement: Placement, dpsgd: DPSGD, seed: int, runs: Tensor
    ) -> None:
        super().__init__(table, placement, runs)
        self._runs, self._rate = runs, dpsgd.sample_rate
        self._key = philox_key(seed=seed)
        self._rows = torch.arange(table.canary + self._has_row, device=runs.device)
        if self._rate == 1.0:
            everyone = torch.ones(len(runs), table.canary, device=runs.device)
            self._everyone = self._weighted(everyone)

    def at(self, step: int) -> tuple[Batch, Tensor]:
        """See `Batches`."""
        if self._rate == 1.0:
            return self._everyone
        return self._weighted(_sampled(self._table, self._runs, self._rate, self._key, step))

    def _weighted(self, sampled: Tensor) -> tuple[Batch, Tensor]:
        target = self._placement.target
        inserted = sampled.new_zeros(len(sampled)) if target is None else sampled[:, target].clone()
        return Batch(self._rows, self._weights(sampled, target, inserted)), inserted


def _sampled(table: Table, runs: Tensor, rate: float, key: NDArray[np.uint32], step: int) -> Tensor:
    """Poisson samples as a mask, shape (runs, records), drawn where the runs' indices lie."""
    mask = torch.empty(len(runs), table.canary, device=runs.device)
    if mask.device.type == "cpu":
        purpose = Purpose.BATCHES.value
        sample_mask(mask.numpy(), _threshold(rate), key, step, runs.numpy(), purpose)
        return mask
    # Triton comes with PyTorch for CUDA alone.
    from dpcanary.training.kernels.philox_cuda import sample_mask as sample_on_device

    sample_on_device(
        mask,
        threshold=int(_threshold(rate)),
        key=key,
        step=step,
        runs=runs,
        purpose=Purpose.BATCHES,
    )
    return mask


class PoissonRows:
    """Poisson samples as lists of each run's own records."""

    def __init__(
        self, table: Table, placement: Placement, dpsgd: DPSGD, seed: int, runs: Tensor
    ) -> None:
        self._table, self._rate, self._runs = table, dpsgd.sample_rate, runs
        self._target = -1 if placement.target is None else placement.target
        self._replacements = torch.from_numpy(placement.rows_of(runs.cpu().numpy()))
        self._key = philox_key(seed=seed)
        self._capacity = _capacity(table.canary, self._rate)

    def at(self, step: int) -> tuple[Batch, Tensor]:
        """See `Batches`."""
        on_host = self._runs.device.type == "cpu"
        rows, inserted = self._on_host(step) if on_host else self._on_device(step)
        return Batch(rows, (rows != self._table.null).float()), inserted

    def _on_host(self, step: int) -> tuple[Tensor, Tensor]:
        rows = np.empty((len(self._runs), self._capacity), np.int64)
        inserted = np.empty(len(self._runs), np.float32)
        largest = sample_rows(
            rows,
            inserted,
            self._target,
            self._replacements.numpy(),
            self._table.null,
            self._table.canary,
            _threshold(self._rate),
            self._key,
            step,
            self._runs.numpy(),
            Purpose.BATCHES.value,
        )
        if largest > self._capacity:
            raise RuntimeError(f"a batch of {largest} records passes {self._capacity}")
        return torch.from_numpy(rows[:, : max(largest, 1)]), torch.from_numpy(inserted)

    def _on_device(self, step: int) -> tuple[Tensor, Tensor]:
        mask = _sampled(self._table, self._runs, self._rate, self._key, step)
        return rows_of_mask(
            mask,
            capacity=self._capacity,
            target=self._target,
            replacements=self._replacements.to(mask.device),
            null=self._table.null,
        )


def rows_of_mask(
    mask: Tensor, *, capacity: int, target: int, replacements: Tensor, null: int
) -> tuple[Tensor, Tensor]:
    """What `philox.sample_rows` lists, from a mask, without waiting for the device.

    Args:
        mask: shape (runs, records), 1 where a record is sampled.
        capacity: a size that no sample passes.
        target: a record, or -1.
        replacements: shape (runs,): the row that stands for the target, or -1 for none.
        null: the row to fill up with.

    Returns:
        Rows, shape (runs, capacity), and whether the target was sampled, shape (runs,).
    """
    # A stable sort brings the sampled records to the front, in order.
    order = torch.argsort(mask, dim=1, descending=True, stable=True)[:, :capacity]
    inside = torch.gather(mask, 1, order) > 0
    rows = torch.where(inside, order, null)
    if target < 0:
        return rows, torch.zeros(len(mask), device=mask.device)
    stand_in = torch.where(replacements < 0, null, replacements).unsqueeze(1)
    return torch.where(rows == target, stand_in, rows), mask[:, target].clone()


class FixedBatches(_Shared):
    """Known batches: each epoch's order of records is cut in pieces, the same for every run."""

    def __init__(
        self, table: Table, placement: Placement, dpsgd: DPSGD, seed: int, runs: Tensor
    ) -> None:
        super().__init__(table, placement, runs)
        assert dpsgd.batch_size is not None
        assert dpsgd.canary_period is not None
        self._size, self._period, self._seed = dpsgd.batch_size, dpsgd.canary_period, seed
        self._runs, self._epoch = runs, -1
        self._order = np.arange(table.canary)
        if placement.target is not None:
            self._order = np.delete(self._order, placement.target)
        self._per_epoch = len(self._order) // self._size
        if self._per_epoch == 0:
            raise InputError(f"batch_size {self._size} is more than the {len(self._order)} records")

    def at(self, step: int) -> tuple[Batch, Tensor]:
        """See `Batches`."""
        epoch, piece = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            stream = generator(seed=self._seed, purpose=Purpose.FIXED_BATCHES, index=epoch)
            self._epoch, self._order = epoch, stream.permutation(np.sort(self._order))
        target, device = self._placement.target, self._runs.device
        rows = self._order[piece * self._size : (piece + 1) * self._size]
        rows = rows if target is None else np.append(rows, target)
        ordinary = torch.ones(len(self._runs), len(rows), device=device)
        rows = np.append(rows, self._table.canary) if self._has_row else rows
        inserted = torch.full((len(self._runs),), float((step + 1) % self._period == 0))
        inserted = inserted.to(device)
        weights = self._weights(ordinary, None if target is None else self._size, inserted)
        return Batch(torch.from_numpy(rows).to(device), weights), inserted


def _threshold(rate: float) -> np.uint64:
    """A word below it is a sampled record: the rate to within 2^-33."""
    return np.uint64(round(rate * 2**32))


def _capacity(num_records: int, rate: float) -> int:
    """A size that no Poisson sample passes."""
    mean = num_records * rate
    return min(num_records, math.ceil(mean + _ROOM * math.sqrt(mean) + _ROOM))
