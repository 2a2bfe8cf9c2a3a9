"""The directions in which the canaries of a watched training lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.core.argument_checks import checked_count
from dpcanary.core.randomness import generator
from dpcanary.errors import InputError
from dpcanary.watching.purposes import Purpose

# Columns at most: a row of so many numbers stays in a core's cache.
MOST_COLUMNS = 65_536
# Numbers that are looked at together where a pass makes an array of its own.
_CHUNK, _CHUNK_ON_GPU = 262_144, 4_194_304
# Numbers of the joined parts that a GPU's thread adds up: the root of the most that a tensor has.
_PIECE = 256


@dataclass(frozen=True)
class NoiseSeen:
    """What a pass over the noise of a step has found.

    Attributes:
        projections: the noise's components in the directions, shape (K,).
        squares: sums of squares by tensor, shape (P,).
        sums: sums by tensor, shape (P,).
        first: the first values of the tensors `sampled`, shape (Q, F); NaN where one is shorter.
        with_sum: the product of the noise with the sum before it, and the square of that sum's
            norm, over all tensors; shape (2,).
    """

    projections: NDArray[np.float64]
    squares: NDArray[np.float64]
    sums: NDArray[np.float64]
    first: NDArray[np.float64]
    with_sum: NDArray[np.float64]


# Tensors of which single values are looked at, and how many values in all and of each.
_MOST_SAMPLED, _VALUES, _FEWEST_VALUES = 32, 256, 8


class _OnDevice:
    """What the directions are made of, on one device, and room for the joined rows."""

    def __init__(self, directions: "Directions", device: torch.device) -> None:
        slots = directions.slot_columns
        # A column without direction belongs to one more, of weight 0.
        slot_of_column = np.full(directions.num_columns, directions.num_slots)
        slot_of_column[slots] = np.arange(directions.num_slots)
        weights = np.append(directions.scales, np.float32(0))
        self.rows = torch.from_numpy(directions.row_signs).to(device)
        self.columns = torch.from_numpy(slots.ravel()).to(device)
        self.slots = torch.from_numpy(slot_of_column).to(device)
        by_column = directions.column_signs * weights[slot_of_column]
        self.weights = torch.from_numpy(by_column).to(device)
        sizes = np.array(directions.joined_sizes)
        pieces = -(-sizes // _PIECE)
        lengths = np.full(pieces.sum(), _PIECE)
        has_values = sizes > 0
        lengths[np.cumsum(pieces)[has_values] - 1] = (sizes - 1)[has_values] % _PIECE + 1
        self.lengths = torch.from_numpy(lengths).to(device)
        self.pieces = torch.from_numpy(pieces).to(device)
        self.positions = torch.from_numpy(directions.joined_positions).to(device)
        self.single = (
            _SingleRow(directions) if device.type == "cpu" and directions.is_single else None
        )
        shape = 2, directions.num_joined_rows, directions.num_columns
        self.joined = torch.zeros(shape, device=device)

    def sums_by_tensor(self, values: Tensor) -> Tensor:
        """The sums of the joined parts of each tensor, shape (P,)."""
        # A GPU gives each segment to one thread, so long ones are summed in pieces.
        by_piece = torch.segment_reduce(values, "sum", lengths=self.lengths, unsafe=True)
        return torch.segment_reduce(by_piece, "sum", lengths=self.pieces, unsafe=True)


class _SingleRow:
    """The passes of `Directions` where all parameters are one row on the CPU.

    For so few numbers NumPy's calls take a fifth of the time of PyTorch's.
    """

    def __init__(self, directions: "Directions") -> None:
        self._directions = directions
        slots = directions.slot_columns
        slot_of_column = np.full(directions.num_columns, directions.num_slots)
        slot_of_column[slots] = np.arange(directions.num_slots)
        signs = directions.column_signs * directions.row_signs[0]
        self._weights = signs * np.append(directions.scales, np.float32(0))[slot_of_column]
        self._columns, self._slots = slots.ravel(), slot_of_column
        self._starts = [0, *accumulate(directions.sizes)]

    def project(self, joined: NDArray[Any]) -> NDArray[np.float64]:
        # Values that are not finite are the caller's to judge.
        with np.errstate(invalid="ignore", over="ignore"):
            ordered = (joined * self._weights).take(self._columns)
            by_slot = ordered.reshape(-1, self._directions.num_slots).sum(axis=0)
        return np.asarray(by_slot, np.float64)

    def add(self, tensors: Sequence[Tensor], amounts: NDArray[np.float64]) -> None:
        values = np.append(amounts, 0.0).astype(np.float32).take(self._slots) * self._weights
        whole = torch.from_numpy(values)
        for tensor, (start, end) in zip(tensors, pairwise(self._starts), strict=True):
            tensor.view(-1).add_(whole[start:end])

    def noise(self, noise: NDArray[Any], sums: NDArray[Any]) -> NoiseSeen:
        exact = noise.astype(np.float64)
        return NoiseSeen(
            self.project(noise),
            self._sums_by_tensor(exact * exact),
            self._sums_by_tensor(exact),
            self._directions.sampled_values(exact.take(self._directions.joined_positions)),
            np.array([noise @ sums, sums @ sums], np.float64),
        )

    def _sums_by_tensor(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        # A process's part of a tensor may be empty, which `np.add.reduceat` gets wrong.
        return np.diff(np.append(0.0, np.cumsum(values))[self._starts])


class Directions:
    """K unit vectors in the trained parameters, with disjoint supports and random signs.

    The d parameters are read as rows of L columns. Each column belongs to one direction, chosen at
    random, and the sign of an entry is that of its row times that of its column. With up to 65,536
    parameters there is a single row, so supports and signs are independent of everything. With
    more, they repeat in each row up to the row's sign. Then a projection is the product of a matrix
    and a vector, which takes as long as reading the parameters once, and the directions need no
    memory per parameter.

    A tensor with at least L entries has rows of its own. What is left of it, and the smaller
    tensors, are joined; the last row of these may be shorter.

    Attributes:
        num_slots: K, the number of directions.
        sizes: numbers of parameters of the tensors.
        num_parameters: d.
        num_columns: L.
        row_signs: of the tensors' own rows, then of the joined ones; shape (rows,).
        column_signs: shape (L,).
        slot_columns: the columns of each direction, shape (L // K, K).
        scales: of the entries of each direction, shape (K,).
        is_single: whether there is one row, with supports that are independent of everything.
        own_rows: the number of own rows of each tensor.
        first_rows: the places of the tensors' first own rows, and of the first joined one.
        joined_sizes: what is left of each tensor after its own rows.
        num_joined_rows: the rows that these make together.
        joined_positions: of single values that are looked at, in the joined parts.
        sampled: places of the tensors of which single values of the noise are kept.
    """

    def __init__(self, sizes: Sequence[int], *, num_slots: int, seed: int) -> None:
        """Draws K directions in tensors of these sizes.

        Raises:
            InputError: if K is larger than the number of parameters, or than 65,536.
        """
        self.sizes = tuple(sizes)
        self.num_parameters = sum(self.sizes)
        self.num_slots = checked_count("num_canaries", num_slots)
        most = min(self.num_parameters, MOST_COLUMNS)
        if self.num_slots > most:
            raise InputError(
                f"num_canaries is {self.num_slots:,}; with {self.num_parameters:,} trained"
                f" parameters it can be at most {most:,}"
            )
        self.num_columns = self.num_parameters
        if self.num_parameters > MOST_COLUMNS:
            self.num_columns = MOST_COLUMNS // self.num_slots * self.num_slots
        rng = generator(seed=seed, purpose=Purpose.DIRECTIONS)
        columns, per_slot = self.num_columns, self.num_columns // self.num_slots
        self.own_rows = [size // columns for size in self.sizes]
        self.joined_sizes = [size % columns for size in self.sizes]
        self.is_single = columns == self.num_parameters
        if self.is_single:
            self.own_rows, self.joined_sizes = [0] * len(self.sizes), [*self.sizes]
        joined = sum(self.joined_sizes)
        self.num_joined_rows = -(-joined // columns)
        self.row_signs = _signs(rng, sum(self.own_rows) + self.num_joined_rows)
        self.column_signs = _signs(rng, columns)
        self.slot_columns = rng.permutation(columns)[: per_slot * self.num_slots].reshape(
            per_slot, self.num_slots
        )
        entries = np.full(columns, len(self.row_signs))
        if joined % columns:
            entries[joined % columns :] -= 1
        self.scales = (1 / np.sqrt(entries[self.slot_columns].sum(axis=0))).astype(np.float32)
        self.first_rows = [0, *accumulate(self.own_rows)]
        self._ends = [*accumulate(self.joined_sizes)]
        self._wide = [place for place, rows in enumerate(self.own_rows) if rows]
        self._sample()
        self._by_device: dict[torch.device, _OnDevice] = {}

    def _sample(self) -> None:
        """Chooses values of the joined parts of some tensors, which are looked at one by one."""
        starts = np.cumsum([0, *self.joined_sizes])
        non_empty = np.flatnonzero(self.joined_sizes)
        chosen = np.linspace(0, len(non_empty) - 1, _MOST_SAMPLED).round().astype(int)
        self.sampled = non_empty[np.unique(chosen)].tolist() if len(non_empty) else []
        self._num_values = each = max(_FEWEST_VALUES, _VALUES // max(1, len(self.sampled)))
        counts = np.minimum(np.array(self.joined_sizes)[self.sampled], each)
        self._is_sampled = np.arange(each) < counts[:, None]
        positions = starts[self.sampled][:, None] + np.arange(each)
        self.joined_positions = positions[self._is_sampled]

    def project(self, tensors: Sequence[Tensor]) -> NDArray[np.float64]:
        """The components of a vector in the directions, shape (K,).

        Args:
            tensors: the vector, one tensor for each of the parameters'.
        """
        here = self._on(tensors[0].device)
        if here.single:
            return here.single.project(_joined_in_numpy(tensors))
        sums = torch.zeros_like(here.weights)
        for place in self._wide:
            for part, signs in _chunks(*self._own(tensors[place], place, here)):
                sums.addmv_(part.to(sums.dtype).t(), signs)
        if self.num_joined_rows:
            self._join(tensors, here.joined[0])
            sums.addmv_(here.joined[0].t(), here.rows[self.first_rows[-1] :])
        return self._by_slot(sums, here)

    def add(self, tensors: Sequence[Tensor], amounts: NDArray[np.float64]) -> None:
        """Adds the sum of `amounts`, shape (K,), times the directions to a vector, in place."""
        here = self._on(tensors[0].device)
        if here.single:
            here.single.add(tensors, amounts)
            return
        of_slots = torch.from_numpy(np.append(amounts, 0.0)).to(here.weights)
        by_column = of_slots.index_select(0, here.slots).mul_(here.weights)
        for place in self._wide:
            rows, signs = self._own(tensors[place], place, here)
            rows.addr_(signs.to(rows.dtype), by_column.to(rows.dtype))
        if self.num_joined_rows:
            torch.outer(here.rows[self.first_rows[-1] :], by_column, out=here.joined[0])
            parts = here.joined[0].view(-1)[: self._ends[-1]].tensor_split(self._ends[:-1])
            for left, part in zip(self._joined(tensors), parts, strict=True):
                left += part

    def noise(
        self, noisy: Sequence[Tensor], sums: Sequence[Tensor], *, scale: float = 1.0
    ) -> NoiseSeen:
        """Looks at the noise, `scale * noisy - sums`, in one pass; see `NoiseSeen`."""
        here = self._on(noisy[0].device)
        if here.single:
            with np.errstate(invalid="ignore", over="ignore"):
                joined_sums = _joined_in_numpy(sums)
                difference = _joined_in_numpy(noisy) * np.float32(scale) - joined_sums
                return here.single.noise(difference, joined_sums)
        by_column = torch.zeros_like(here.weights)
        moments = torch.zeros(2, len(noisy), dtype=torch.float64, device=noisy[0].device)
        with_sum = torch.zeros(2, dtype=torch.float64, device=noisy[0].device)
        for place in self._wide:
            rows, signs = self._own(noisy[place], place, here)
            others, _ = self._own(sums[place], place, here)
            for (part, part_signs), (other, _) in zip(
                _chunks(rows, signs), _chunks(others, signs), strict=True
            ):
                # The noise with its sign reversed, in one pass.
                before = other.to(by_column.dtype)
                minus = torch.sub(before, part, alpha=scale)
                by_column.addmv_(minus.t(), part_signs, alpha=-1)
                flat = minus.view(-1)
                moments[0, place] += flat.dot(flat)
                moments[1, place] -= flat.sum()
                flat_before = before.reshape(-1)
                with_sum[0] -= flat.dot(flat_before)
                with_sum[1] += flat_before.dot(flat_before)
        first = torch.zeros(0, device=noisy[0].device)
        if self.num_joined_rows:
            noise, others = here.joined
            self._join(noisy, noise)
            self._join(sums, others)
            noise.mul_(scale).sub_(others)
            by_column.addmv_(noise.t(), here.rows[self.first_rows[-1] :])
            flat_before = others.view(-1)[: self._ends[-1]]
            with_sum[0] += noise.view(-1)[: self._ends[-1]].dot(flat_before)
            with_sum[1] += flat_before.dot(flat_before)
            flat = noise.view(-1)[: self._ends[-1]].double()
            for row, values in zip(moments, (flat.square(), flat), strict=True):
                row += here.sums_by_tensor(values)
            first = flat.index_select(0, here.positions)
        squares, totals = _numbers(moments)
        values = self.sampled_values(_numbers(first))
        along = self._by_slot(by_column, here)
        return NoiseSeen(along, squares, totals, values, _numbers(with_sum))

    def sampled_values(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The values at `joined_positions` by tensor, shape (Q, F); NaN where one is shorter."""
        by_tensor = np.full(self._is_sampled.shape, np.nan)
        by_tensor[self._is_sampled] = values
        return by_tensor

    def names_of_sampled(self, names: Sequence[str]) -> list[str]:
        """The names of the tensors `sampled`, of all names."""
        return [names[place] for place in self.sampled]

    def _by_slot(self, by_column: Tensor, here: _OnDevice) -> NDArray[np.float64]:
        by_column *= here.weights
        ordered = by_column.index_select(0, here.columns)
        return _numbers(ordered.view(-1, self.num_slots).sum(dim=0))

    def _on(self, device: torch.device) -> _OnDevice:
        if device not in self._by_device:
            self._by_device[device] = _OnDevice(self, device)
        return self._by_device[device]

    def _own(self, tensor: Tensor, place: int, here: _OnDevice) -> tuple[Tensor, Tensor]:
        """The own rows of a tensor that has some, and their signs."""
        rows, first = self.own_rows[place], self.first_rows[place]
        flat = tensor.view(-1)[: rows * self.num_columns]
        return flat.view(rows, self.num_columns), here.rows[first : first + rows]

    def _joined(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What is left of each tensor after its own rows."""
        if not self._wide:
            return [tensor.view(-1) for tensor in tensors]
        return [
            tensor.view(-1)[rows * self.num_columns :]
            for tensor, rows in zip(tensors, self.own_rows, strict=True)
        ]

    def _join(self, tensors: Sequence[Tensor], rows: Tensor) -> None:
        parts = self._joined(tensors)
        if parts[0].dtype != rows.dtype:
            parts = [part.to(rows.dtype) for part in parts]
        flat, count = rows.view(-1), self._ends[-1]
        torch.cat(parts, out=flat[:count])
        flat[count:] = 0


def _joined_in_numpy(tensors: Sequence[Tensor]) -> NDArray[Any]:
    return np.concatenate([tensor.view(-1).float().numpy() for tensor in tensors])


def _signs(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    return (2 * rng.integers(0, 2, count) - 1).astype(np.float32)


def _chunks(rows: Tensor, row_signs: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Some rows at a time, so that what is computed of them stays in the cache."""
    parts = -(-rows.numel() // (_CHUNK_ON_GPU if rows.is_cuda else _CHUNK))
    if parts <= 1:
        return [(rows, row_signs)]
    return [*zip(rows.tensor_split(parts), row_signs.tensor_split(parts), strict=True)]


def _numbers(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.cpu().numpy().astype(np.float64)
