"""The batches of a block of runs. Each is a function of seed, run and step alone."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.core.randomness import generator, philox_key
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradient_path import Batch, RecordTable
from dpcanary.training.kernels.philox import sample_mask, sample_rows
from dpcanary.training.slots import Slots
from dpcanary.training.training_settings import Purpose, Sampling

# Lists have room for the mean size of a sample and this many standard deviations. A sample exceeds
# that with probability below 1e-20.
_ROOM = 10


class KnownBatches:
    """Pieces of a random order of the records, drawn once for each epoch.

    What is left at the end of an epoch is not used in it.
    """

    def __init__(
        self,
        records: NDArray[np.int64],
        *,
        batch_size: int,
        seed: int,
        purpose: Purpose = Purpose.FIXED_BATCHES,
    ) -> None:
        if batch_size > len(records):
            raise InputError(f"batch_size {batch_size} is more than the {len(records)} records")
        self._records, self._size = records, batch_size
        self._seed, self._purpose = seed, purpose
        self._per_epoch = len(records) // batch_size
        self._epoch, self._order = -1, records

    def at(self, step: int) -> NDArray[np.int64]:
        """The records of a step's batch (0 for the first), shape (batch_size,)."""
        epoch, piece = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            stream = generator(seed=self._seed, purpose=self._purpose, index=epoch)
            self._epoch, self._order = epoch, stream.permutation(self._records)
        return self._order[piece * self._size : (piece + 1) * self._size]


def batches_of(dpsgd: DPSGD, *, shared: bool) -> type["Batches"]:
    """The kind of batches that a mechanism needs.

    Poisson batches are weights on all records if `shared`, else lists of each run's own.
    """
    match dpsgd.sampling:
        case Sampling.FIXED:
            return _FixedBatches
        case Sampling.SHUFFLED:
            raise InputError("models are not trained on shuffled batches")  # see DPSGD
        case Sampling.POISSON:
            return _PoissonWeights if shared else _PoissonRows
        case never:
            assert_never(never)


@dataclass
class Batches(ABC):
    """What some runs train on at each step.

    Attributes:
        worlds: of each run and slot, shape (runs, slots).
        runs: run indices, shape (runs,), on the device of the table.
    """

    table: RecordTable
    slots: Slots
    worlds: NDArray[np.int64]
    dpsgd: DPSGD
    seed: int
    runs: Tensor

    def __post_init__(self) -> None:
        table, device = self.table, self.runs.device
        self._key = philox_key(seed=self.seed)
        # A record is sampled if its random word is below this, so the rate is off by at most 2^-33.
        self._threshold = np.uint64(round(self.dpsgd.sample_rate * 2**32))
        self._targets = torch.from_numpy(self.slots.targets).to(device)
        self._canary_rows = table.num_private + torch.arange(table.num_canaries, device=device)
        # The row that stands for each slot's target, or -1 for none.
        self._replacements = torch.from_numpy(self.slots.rows_in(self.worlds)).to(device)
        canary = self._replacements >= table.num_private
        # The canaries of a slot stand side by side: one, or one for each value that it may hold.
        self._per_slot = max(1, table.num_canaries // max(1, len(self.slots)))
        of_slot = self._replacements.repeat_interleave(self._per_slot, dim=1)
        self._takes_canary = (of_slot[:, : table.num_canaries] == self._canary_rows).float()
        self._keeps_target = (~canary & (self._replacements >= 0)).float()

    @abstractmethod
    def at(self, step: int) -> tuple[Batch, Tensor]:
        """The batch of a step (0 for the first), and 1 for slots in it, shape (runs, slots)."""

    def _weights(self, weights: Tensor, targets: Tensor, inserted: Tensor) -> Tensor:
        """Sets the weights of the targets' columns, and appends columns of input canaries."""
        if len(targets):
            weights[:, targets] = inserted * self._keeps_target
        if len(self._canary_rows):
            of_slot = inserted.repeat_interleave(self._per_slot, dim=1)
            weights = torch.cat([weights, of_slot * self._takes_canary], dim=1)
        return weights

    def _sampled(self, step: int) -> Tensor:
        """Poisson samples as a mask, shape (runs, records)."""
        mask = torch.empty(len(self.runs), self.table.num_private, device=self.runs.device)
        purpose = Purpose.BATCHES
        if mask.device.type == "cpu":
            runs = self.runs.numpy()
            sample_mask(mask.numpy(), self._threshold, self._key, step, runs, purpose.value)
            return mask
        # Triton is installed with PyTorch's CUDA build only.
        from dpcanary.training.kernels.philox_cuda import sample_mask as sample_on_device

        threshold, key = int(self._threshold), self._key
        sample_on_device(
            mask, threshold=threshold, key=key, step=step, runs=self.runs, purpose=purpose
        )
        return mask


class _PoissonWeights(Batches):
    """Poisson samples as weights on all records."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rows = torch.arange(self.table.null, device=self.runs.device)
        self._everyone = self._drawn(0) if self.dpsgd.sample_rate == 1.0 else None

    def at(self, step: int) -> tuple[Batch, Tensor]:
        return self._everyone or self._drawn(step)

    def _drawn(self, step: int) -> tuple[Batch, Tensor]:
        sampled = self._sampled(step)
        inserted = sampled[:, self._targets]
        return Batch(self._rows, self._weights(sampled, self._targets, inserted)), inserted


class _PoissonRows(Batches):
    """Poisson samples as lists of each run's own records."""

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.table.num_private
        mean = count * self.dpsgd.sample_rate
        self._capacity = min(count, math.ceil(mean + _ROOM * math.sqrt(mean) + _ROOM))
        # For each row of the table, the slot of which it is the target, or -1.
        self._slot_of = torch.full((len(self.table.labels),), -1, device=self.runs.device)
        self._slot_of[self._targets] = torch.arange(len(self._targets), device=self.runs.device)

    def at(self, step: int) -> tuple[Batch, Tensor]:
        on_host = self.runs.device.type == "cpu"
        rows, inserted = self._on_host(step) if on_host else self._on_device(step)
        return Batch(rows, (rows != self.table.null).float()), inserted

    def _on_host(self, step: int) -> tuple[Tensor, Tensor]:
        rows = np.empty((len(self.runs), self._capacity), np.int64)
        inserted = np.empty(self.worlds.shape, np.float32)
        largest = sample_rows(
            rows,
            inserted,
            self._slot_of.numpy(),
            self._replacements.numpy(),
            self.table.null,
            self.table.num_private,
            self._threshold,
            self._key,
            step,
            self.runs.numpy(),
            Purpose.BATCHES.value,
        )
        if largest > self._capacity:
            raise RuntimeError(
                f"a batch of {largest} exceeds the room for {self._capacity} records"
            )
        return torch.from_numpy(rows[:, : max(largest, 1)]), torch.from_numpy(inserted)

    def _on_device(self, step: int) -> tuple[Tensor, Tensor]:
        """The lists of a step, from a mask, without waiting for the device."""
        mask, null = self._sampled(step), self.table.null
        # A stable sort brings the sampled records to the front, in order.
        order = torch.argsort(mask, dim=1, descending=True, stable=True)[:, : self._capacity]
        rows = torch.where(torch.gather(mask, 1, order) > 0, order, null)
        slots = self._slot_of[rows]
        stand_ins = torch.where(self._replacements < 0, null, self._replacements)
        stand_in = torch.gather(stand_ins, 1, slots.clamp_min(0))
        return torch.where(slots < 0, rows, stand_in), mask[:, self._targets]


class _FixedBatches(Batches):
    """Known batches, the same for all runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.dpsgd.batch_size is not None
        assert self.dpsgd.canary_period is not None
        self._size, self._period = self.dpsgd.batch_size, self.dpsgd.canary_period
        others = np.delete(np.arange(self.table.num_private), self.slots.targets)
        self._known_batches = KnownBatches(others, batch_size=self._size, seed=self.seed)
        # Weights are made once: they depend on whether the slots take part, not on the step.
        self._ordinary = torch.ones(1, self._size, device=self.runs.device)
        self._ordinary = self._ordinary.expand(len(self.runs), -1)
        self._inserted = torch.ones(self.worlds.shape, device=self.runs.device)
        self._slot_rows, self._with_slots = self._targets[:0], self._ordinary
        if not self.slots.has_gradients:
            keeps = self._keeps_target[:, : len(self._targets)]  # none, or one for each slot
            self._slot_rows = torch.cat([self._targets, self._canary_rows])
            self._with_slots = torch.cat([self._ordinary, keeps, self._takes_canary], dim=1)

    def at(self, step: int) -> tuple[Batch, Tensor]:
        rows = torch.from_numpy(self._known_batches.at(step)).to(self.runs.device)
        if (step + 1) % self._period:
            return Batch(rows, self._ordinary), torch.zeros_like(self._inserted)
        return Batch(torch.cat([rows, self._slot_rows]), self._with_slots), self._inserted
