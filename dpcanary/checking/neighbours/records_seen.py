"""Which records a training reads, and when: data that note which of their rows are taken."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Subset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

Index = NDArray[np.int64]

# Operations that leave the rows of a tensor where they are, by the names of PyTorch.
_KEEPING_ROWS = {
    *("to", "float", "double", "half", "bfloat16", "clone", "contiguous", "detach", "cpu", "cuda"),
    *("add", "sub", "mul", "div", "true_divide", "rsub", "type", "long", "int", "requires_grad_"),
    *("__add__", "__sub__", "__mul__", "__truediv__", "__radd__", "__rsub__", "__rmul__", "bool"),
}
# What is at least this share of the records is a part of the data, and is followed further.
_PART = 0.4


@dataclass(frozen=True)
class Batch:
    """Records that were read together.

    Attributes:
        records: their numbers in the dataset.
        values: a checksum of the values of each, as the training got them.
        loaded: whether a `DataLoader` gave them.
    """

    records: Index
    values: NDArray[np.uint64]
    loaded: bool

    def has(self, record: int) -> int:
        """How often a record is in it."""
        return int((self.records == record).sum())


class Reader:
    """Takes note of what is read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.batches: list[Batch] = []
        self._is_paused = False

    def note(self, records: Index, values: Any, *, loaded: bool = False) -> None:
        """Notes a batch. What is read without gradients is for an evaluation, and is left out."""
        if self._is_paused or not torch.is_grad_enabled():
            return
        self.batches.append(Batch(records, _checksums(values, len(records)), loaded))

    def take_batches(self) -> list[Batch]:
        """The batches since the last call."""
        batches, self.batches = self.batches, []
        return batches

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is read inside is not noted."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before


def _checksums(values: Any, count: int) -> NDArray[np.uint64]:
    """One number for each row of the arrays that have `count` of them."""
    total = np.zeros(count, np.uint64)
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor):
            leaf = leaf.detach().cpu()
            leaf = leaf.float() if leaf.dtype is torch.bfloat16 else leaf
            try:
                leaf = leaf.as_subclass(Tensor).numpy()
            except (TypeError, RuntimeError):  # sparse, or of numbers that NumPy has not
                continue
        if not isinstance(leaf, np.ndarray) or not leaf.ndim or len(leaf) != count:
            continue
        if not leaf.size or leaf.dtype.hasobject:
            continue
        rows = np.ascontiguousarray(leaf).reshape(count, -1).view(np.uint8)
        sums = np.fromiter((crc32(row.data) for row in rows), np.uint64, count)
        total = total * np.uint64(0x9E3779B97F4A7C15) + sums
    return total


class NotingTensor(Tensor):
    """A tensor whose rows are records: what takes some of them is noted. Results are plain."""

    records: Index
    reader: Reader

    @staticmethod
    def of(values: Tensor, records: Index, reader: Reader) -> "NotingTensor":
        """A view of a tensor; `records` are the numbers of its rows."""
        noting = values.as_subclass(NotingTensor)
        noting.records, noting.reader = records, reader
        return noting

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Tensor.__reduce_ex__(self.as_subclass(Tensor), protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.as_subclass(Tensor).clone()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        source = next((argument for argument in args if isinstance(argument, NotingTensor)), None)
        if not isinstance(result, Tensor):
            return torch.utils._pytree.tree_map(_plain, result)
        records = None if source is None else getattr(source, "records", None)
        plain = _plain(result)
        if source is None or records is None or not plain.dim():
            return plain
        name = func.__name__
        if name in ("__getitem__", "index_select"):
            index = args[1] if name == "__getitem__" else args[2]
            return _part(plain, index, source.records, source.reader)
        if name in _KEEPING_ROWS and len(plain) == len(records):
            return NotingTensor.of(plain, records, source.reader)
        return plain


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, NotingTensor) else value


class NotingArray(np.ndarray):
    """An array whose rows are records, as `NotingTensor`."""

    records: Index | None
    reader: Reader | None

    @staticmethod
    def of(values: NDArray[Any], records: Index, reader: Reader) -> "NotingArray":
        """A view of an array; `records` are the numbers of its rows."""
        noting = values.view(NotingArray)
        noting.records, noting.reader = records, reader
        return noting

    def __array_finalize__(self, other: Any) -> None:
        records = getattr(other, "records", None)
        follows = records is not None and self.ndim and len(self) == len(records)
        self.records = records if follows else None
        self.reader = getattr(other, "reader", None) if follows else None

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __getitem__(self, index: Any) -> Any:
        plain = np.asarray(self)[index]
        if self.records is None or self.reader is None:
            return plain
        return _part(plain, index, self.records, self.reader)


def _part(plain: Any, index: Any, records: Index, reader: Reader) -> Any:
    """What an index takes of rows; noted, and followed further if it is most of them."""
    first = index[0] if isinstance(index, tuple) and index else index
    if first is None or first is Ellipsis or (isinstance(index, tuple) and not index):
        return plain
    if isinstance(first, Tensor):
        first = _plain(first).detach().cpu().numpy()
    try:
        part = records[first]
    except (IndexError, TypeError, ValueError):
        return plain
    if not isinstance(part, np.ndarray):
        part = np.array([part])
        reader.note(part, [plain[None]] if hasattr(plain, "__getitem__") else [])
        return plain
    if part.ndim != 1:
        part = part.ravel()
    reader.note(part, [plain])
    is_part = len(part) >= max(2, _PART * reader.count) and len(plain) == len(part)
    if is_part and isinstance(plain, Tensor):
        return NotingTensor.of(plain, part, reader)
    if is_part and isinstance(plain, np.ndarray):
        return NotingArray.of(plain, part, reader)
    return plain


@contextmanager
def loaders_noted(reader: Reader, is_private: Callable[[Any], bool]) -> Iterator[None]:
    """While inside, the batches of every `DataLoader` of the records are noted as they are given.

    The indices are those that the main process draws, so it works with workers too, which fetch
    batches ahead of time.

    Args:
        reader: takes the notes.
        is_private: whether a dataset is that of the training; others of its length are as well.
    """
    kind: Any = _BaseDataLoaderIter
    drawing, giving, resetting = kind._next_index, kind.__next__, kind._reset

    def draw(iterator: Any) -> Any:
        index = drawing(iterator)
        iterator.__dict__.setdefault("_dpcanary_drawn", deque()).append(index)
        return index

    def give(iterator: Any) -> Any:
        with reader.paused():
            batch = giving(iterator)
        drawn = iterator.__dict__.get("_dpcanary_drawn")
        if drawn:
            index = drawn.popleft()
            dataset = getattr(iterator, "_dataset", None)
            records = _numbers(dataset, index, is_private, reader.count)
            if records is not None:
                reader.note(records, batch, loaded=True)
        return batch

    def reset(iterator: Any, *args: Any, **keys: Any) -> Any:
        iterator.__dict__.pop("_dpcanary_drawn", None)
        return resetting(iterator, *args, **keys)

    kind._next_index, kind.__next__, kind._reset = draw, give, reset
    try:
        yield
    finally:
        kind._next_index, kind.__next__, kind._reset = drawing, giving, resetting


def _numbers(
    dataset: Any, index: Any, is_private: Callable[[Any], bool], count: int
) -> Index | None:
    """The numbers of the records that a loader of a dataset gives; None if they are not known."""
    try:
        rows = np.atleast_1d(np.asarray(index, dtype=np.int64))
    except (TypeError, ValueError):
        return None
    while isinstance(dataset, Subset) and not is_private(dataset):
        rows = np.asarray(dataset.indices, dtype=np.int64)[rows]
        dataset = dataset.dataset
    if isinstance(dataset, TensorDataset):
        # A tensor that was computed from the records and split has noted whose rows it has.
        numbered = getattr(dataset.tensors[0], "records", None)
        if numbered is not None:
            numbers: Index = numbered[rows]
            return numbers
    is_ours = is_private(dataset)
    if not is_ours:
        try:
            is_ours = len(dataset) == count
        except TypeError:
            return None
    return rows if is_ours else None


def noting(value: Any, reader: Reader, count: int) -> Any:
    """A tensor or an array with a row for each record, which notes what is taken of it."""
    records: Index = np.arange(count)
    if isinstance(value, Tensor):
        return NotingTensor.of(value, records, reader)
    if type(value) is np.ndarray and value.dtype != object:
        return NotingArray.of(value, records, reader)
    return value


def other_rows(
    before: Sequence[Batch], now: Sequence[Batch], record: int
) -> tuple[int, int] | None:
    """Numbers of other records that have other values, and of all others, in the same batches.

    None if the batches do not have the same records.
    """
    if len(before) != len(now):
        return None
    changed = total = 0
    for batch, other in zip(before, now, strict=True):
        if not np.array_equal(batch.records, other.records):
            return None
        others = batch.records != record
        total += int(others.sum())
        changed += int((batch.values != other.values)[others].sum())
    return changed, total
