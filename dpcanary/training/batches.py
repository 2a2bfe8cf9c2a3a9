"""The batches of a block of runs, step by step. Each is a function of seed, run and step alone."""

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.errors import InputError
from dpcanary.randomness import generator, philox_key
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradients.gradient_path import Batch, RecordTable
from dpcanary.training.kernels.philox import sample_mask, sample_rows
from dpcanary.training.options import Sampling
from dpcanary.training.purposes import Purpose
from dpcanary.training.slots import Slots

# Standard deviations above the mean that the size of a sample may be: beyond 1e-22.
_ROOM = 10


class Batches(Protocol):
    """What each step trains on."""

    def at(self, step: int) -> tuple[Batch, Tensor]:
        """The batch of a step (0 for the first), and where canaries come in.

        Returns:
            The batch, and shape (runs, slots): 1 where the slot's place is in the batch, else 0.
        """
        ...


def batches_of(
    *,
    table: RecordTable,
    slots: Slots,
    worlds: NDArray[np.int64],
    dpsgd: DPSGD,
    seed: int,
    runs: Tensor,
    shared: bool,
) -> Batches:
    """The batches of some runs.

    Args:
        table: the records.
        slots: what stands in the targets' places.
        worlds: of each run and slot, shape (runs, slots).
        dpsgd: says how batches are chosen.
        seed: the audit's seed.
        runs: run indices, shape (runs,), on the device of the table.
        shared: whether Poisson batches are weights on all records, or lists of each run's own.
    """
    replacements = torch.from_numpy(slots.rows_in(worlds)).to(runs.device)
    if dpsgd.sampling is Sampling.FIXED:
        return FixedBatches(table, slots, replacements, dpsgd, seed)
    if shared:
        return PoissonWeights(table, slots, replacements, dpsgd, seed, runs)
    return PoissonRows(table, slots, replacements, dpsgd, seed, runs)


class _Shared:
    """Batches that all runs look at: the records, and the rows of input canaries behind them."""

    def __init__(self, table: RecordTable, slots: Slots, replacements: Tensor) -> None:
        self._table, self._slots = table, slots
        device = replacements.device
        self._targets = torch.from_numpy(slots.targets).to(device)
        self._canary_rows = table.num_private + torch.arange(table.num_canaries, device=device)
        if len(slots.targets):
            self._keeps_target = replacements.eq(self._targets).float()
        if table.num_canaries:
            self._takes_canary = replacements.eq(self._canary_rows).float()

    def _weights(self, ordinary: Tensor, places: Tensor, inserted: Tensor) -> Tensor:
        """Weights of the records, the targets' in some places; the canaries' come last."""
        weights = ordinary
        if self._table.num_canaries:
            weights = torch.cat([ordinary, inserted * self._takes_canary], dim=1)
        if len(places):
            weights[:, places] = inserted * self._keeps_target
        return weights


class PoissonWeights(_Shared):
    """Poisson samples as weights on all records."""

    def __init__(
        self,
        table: RecordTable,
        slots: Slots,
        replacements: Tensor,
        dpsgd: DPSGD,
        seed: int,
        runs: Tensor,
    ) -> None:
        super().__init__(table, slots, replacements)
        self._runs, self._rate = runs, dpsgd.sample_rate
        self._key = philox_key(seed=seed)
        self._rows = torch.arange(table.null, device=runs.device)
        if self._rate == 1.0:
            everyone = torch.ones(len(runs), table.num_private, device=runs.device)
            self._everyone = self._weighted(everyone)

    def at(self, step: int) -> tuple[Batch, Tensor]:
        """See `Batches`."""
        if self._rate == 1.0:
            return self._everyone
        return self._weighted(_sampled(self._table, self._runs, self._rate, self._key, step))

    def _weighted(self, sampled: Tensor) -> tuple[Batch, Tensor]:
        inserted = sampled[:, self._targets]
        return Batch(self._rows, self._weights(sampled, self._targets, inserted)), inserted


def _sampled(
    table: RecordTable, runs: Tensor, rate: float, key: NDArray[np.uint32], step: int
) -> Tensor:
    """Poisson samples as a mask, shape (runs, records), drawn where the runs' indices lie."""
    mask = torch.empty(len(runs), table.num_private, device=runs.device)
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
        self,
        table: RecordTable,
        slots: Slots,
        replacements: Tensor,
        dpsgd: DPSGD,
        seed: int,
        runs: Tensor,
    ) -> None:
        self._table, self._rate, self._runs = table, dpsgd.sample_rate, runs
        self._replacements = replacements
        self._key = philox_key(seed=seed)
        self._capacity = _capacity(table.num_private, self._rate)
        self._targets = torch.from_numpy(slots.targets).to(runs.device)
        self._slot_of = torch.full((len(table.labels),), -1, device=runs.device)
        self._slot_of[self._targets] = torch.arange(len(slots.targets), device=runs.device)

    def at(self, step: int) -> tuple[Batch, Tensor]:
        """See `Batches`."""
        on_host = self._runs.device.type == "cpu"
        rows, inserted = self._on_host(step) if on_host else self._on_device(step)
        return Batch(rows, (rows != self._table.null).float()), inserted

    def _on_host(self, step: int) -> tuple[Tensor, Tensor]:
        rows = np.empty((len(self._runs), self._capacity), np.int64)
        inserted = np.empty(self._replacements.shape, np.float32)
        largest = sample_rows(
            rows,
            inserted,
            self._slot_of.numpy(),
            self._replacements.numpy(),
            self._table.null,
            self._table.num_private,
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
            targets=self._targets,
            slot_of=self._slot_of,
            replacements=self._replacements,
            null=self._table.null,
        )


def rows_of_mask(
    mask: Tensor,
    *,
    capacity: int,
    targets: Tensor,
    slot_of: Tensor,
    replacements: Tensor,
    null: int,
) -> tuple[Tensor, Tensor]:
    """What `philox.sample_rows` lists, from a mask, without waiting for the device.

    Args:
        mask: shape (runs, records), 1 where a record is sampled.
        capacity: a size that no sample passes.
        targets: the target of each slot, shape (slots,).
        slot_of: the slot of which a row is the target, or -1; shape (rows of the table,).
        replacements: the row that stands for a slot's target, or -1 for none; (runs, slots).
        null: the row to fill up with.

    Returns:
        Rows, shape (runs, capacity), and whether each slot's target was sampled, (runs, slots).
    """
    # A stable sort brings the sampled records to the front, in order.
    order = torch.argsort(mask, dim=1, descending=True, stable=True)[:, :capacity]
    inside = torch.gather(mask, 1, order) > 0
    rows = torch.where(inside, order, null)
    slots = slot_of[rows]
    stand_ins = torch.where(replacements < 0, null, replacements)
    chosen = torch.where(slots < 0, rows, torch.gather(stand_ins, 1, slots.clamp_min(0)))
    return chosen, mask[:, targets]


class FixedBatches(_Shared):
    """Known batches: the order of records in each epoch is cut in pieces, the same for all runs."""

    def __init__(
        self,
        table: RecordTable,
        slots: Slots,
        replacements: Tensor,
        dpsgd: DPSGD,
        seed: int,
    ) -> None:
        super().__init__(table, slots, replacements)
        assert dpsgd.batch_size is not None
        assert dpsgd.canary_period is not None
        self._size, self._period, self._seed = dpsgd.batch_size, dpsgd.canary_period, seed
        self._shape, self._device, self._epoch = replacements.shape, replacements.device, -1
        self._order = np.delete(np.arange(table.num_private), slots.targets)
        self._per_epoch = len(self._order) // self._size
        if self._per_epoch == 0:
            raise InputError(f"batch_size {self._size} is more than the {len(self._order)} records")

    def at(self, step: int) -> tuple[Batch, Tensor]:
        """See `Batches`."""
        epoch, piece = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            stream = generator(seed=self._seed, purpose=Purpose.FIXED_BATCHES, index=epoch)
            self._epoch, self._order = epoch, stream.permutation(np.sort(self._order))
        ordinary = self._order[piece * self._size : (piece + 1) * self._size]
        rows = np.concatenate([ordinary, self._slots.targets])
        places = torch.arange(self._size, len(rows), device=self._device)
        ones = torch.ones(self._shape[0], len(rows), device=self._device)
        comes_in = float((step + 1) % self._period == 0)
        inserted = torch.full(self._shape, comes_in, device=self._device)
        weights = self._weights(ones, places, inserted)
        every_row = torch.cat([torch.from_numpy(rows).to(self._device), self._canary_rows])
        return Batch(every_row, weights), inserted


def _threshold(rate: float) -> np.uint64:
    """A word below it is a sampled record: the rate to within 2^-33."""
    return np.uint64(round(rate * 2**32))


def _capacity(num_records: int, rate: float) -> int:
    """A size that no Poisson sample passes."""
    mean = num_records * rate
    return min(num_records, math.ceil(mean + _ROOM * math.sqrt(mean) + _ROOM))
