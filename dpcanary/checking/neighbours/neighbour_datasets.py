"""The user's records, and copies of them in which one is replaced."""

import copy
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.data import Dataset, TensorDataset

from dpcanary.checking.neighbours.records_seen import Reader, noting
from dpcanary.checking.neighbours.tape import array_of
from dpcanary.errors import InputError

# Values of an array in which rare ones are looked for, at most.
_MOST_VALUES = 10_000_000


class Data:
    """A dataset whose records can be read and replaced.

    It is a `TensorDataset`, a tuple or dict of arrays with a row for each record, a list of
    records, or any dataset with a length and records by number.

    Attributes:
        count: the number of records.
        read_otherwise: what a run has read of a dataset of one's own other than by number, in which
            a replaced record is not replaced.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._rows: Any = None  # arrays with a row for each record
        self._held: dict[str, int] | None = None  # attributes of a dataset of one's own
        self.read_otherwise: set[str] = set()
        if isinstance(dataset, TensorDataset):
            self._rows = dataset.tensors
        elif isinstance(dataset, tuple | Mapping) or _is_array(dataset):
            self._rows = dataset
        if self._rows is not None:
            _refuse_lists(self._rows)
            lengths = {len(leaf) for leaf in tree_flatten(self._rows)[0] if _is_array(leaf)}
            if len(lengths) != 1:
                raise InputError(
                    "the arrays of the dataset must have a row for each record, and as many rows:"
                    f" their lengths are {sorted(lengths)}"
                )
            [self.count] = lengths
        else:
            try:
                self.count = len(dataset)
                dataset[0]
            except Exception as error:
                raise InputError(
                    "dataset must have a length and records by number, or be a tuple of arrays with"
                    f" a row for each record ({type(error).__name__}: {error})"
                ) from error
        if self.count < 2:
            raise InputError(f"the dataset has {self.count} record; two are needed")

    def record(self, index: int) -> Any:
        """A record, as a copy: what the dataset gives, or a row of each array."""
        if self._rows is None:
            return copy.deepcopy(self._dataset[index])
        return tree_map(lambda rows: _copied(rows[index]) if _is_array(rows) else rows, self._rows)

    def copied(self, reader: Reader, index: int | None = None, record: Any = None) -> Any:
        """A copy for one run, which notes what is read of it; with a record replaced, if given."""
        if self._rows is not None:
            leaves, tree = tree_flatten(self._rows)
            new = [None] * len(leaves) if index is None else tree_flatten(record)[0]
            if len(new) != len(leaves):
                raise InputError(
                    f"a record must have {len(leaves)} values, one for each array, and has"
                    f" {len(new)}"
                )
            copies = [
                noting(_with_row(leaf, index, value), reader, self.count)
                if _is_array(leaf)
                else leaf
                for leaf, value in zip(leaves, new, strict=True)
            ]
            rows = tree_unflatten(copies, tree)
            if not isinstance(self._dataset, TensorDataset):
                return rows
            dataset = copy.copy(self._dataset)
            dataset.tensors = rows
            return dataset
        if isinstance(self._dataset, list):
            records = copy.deepcopy(self._dataset)
            if index is not None:
                records[index] = record
            return records
        if self._held is None:
            self._held = _held(self._dataset, self.count)
        return _with_item(self._dataset, self.count, index, record, self._held, self.read_otherwise)

    def rarity(self) -> NDArray[np.int64]:
        """For each record of arrays, how many have its rarest value, among values that repeat."""
        counts = np.full(self.count, self.count)
        for leaf in tree_flatten(self._rows)[0] if self._rows is not None else []:
            array = array_of(leaf)
            if array.ndim != 2 or array.dtype.kind not in "iuf" or array.size > _MOST_VALUES:
                continue
            for column in array.T:
                _, positions, numbers = np.unique(column, return_inverse=True, return_counts=True)
                if len(numbers) <= self.count / 2:
                    counts = np.minimum(counts, numbers[positions])
        return counts

    def where_it_differs(self, other: "Data") -> list[int]:
        """Numbers of the records in which another dataset of the same length differs."""
        if other.count != self.count:
            raise InputError(
                f"the neighbour has {other.count} records and the dataset {self.count}: a record is"
                " replaced, not added or removed"
            )
        return [
            index
            for index in range(self.count)
            if not _same(self.record(index), other.record(index))
        ]


def _refuse_lists(rows: Any) -> None:
    """In a tuple or dict, a list would be taken for many values, of which none is replaced."""
    if not isinstance(rows, tuple | Mapping):
        return
    named = rows.items() if isinstance(rows, Mapping) else enumerate(rows)
    lengths = {len(leaf) for leaf in tree_flatten(rows)[0] if _is_array(leaf)}
    for name, value in named:
        if hasattr(value, "iloc"):
            raise InputError(f"{name!r} is a table or series of pandas: give its to_numpy()")
        if isinstance(value, list) and (not lengths or len(value) in lengths):
            raise InputError(
                f"{name!r} is a list with a row for each record: make it an array (numpy.array)"
            )


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and len(value.shape) > 0


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return np.array(value)


def _with_row(rows: Any, index: int | None, value: Any) -> Any:
    """A copy of an array, with one row replaced."""
    if isinstance(rows, Tensor):
        copied = rows.detach().clone()
        if index is not None:
            copied[index] = torch.as_tensor(value).to(copied)
        return copied
    if isinstance(rows, np.ndarray):
        array = rows.copy()
        if index is not None:
            array[index] = value
        return array
    if isinstance(rows, list):
        return copy.deepcopy(rows)
    return rows if index is None else rows.at[index].set(value)  # of jax


def _with_item(
    dataset: Any,
    count: int,
    index: int | None,
    record: Any,
    held: Mapping[str, int],
    otherwise: set[str],
) -> Any:
    """A copy of a dataset of any kind, which gives another record in one place.

    Args:
        dataset: the original.
        count: of its records.
        index: of the record that is replaced, if one is.
        record: in its place.
        held: by name, attributes with a row for each record, and which of its values they have.
        otherwise: takes names of other attributes with records that are read other than by number.
    """
    kind = type(dataset)
    own = getattr(dataset, "__dict__", {})
    watched = {name for name, value in own.items() if _holds(value, count)}
    getattribute: Any = kind.__getattribute__
    inside: list[None] = []

    def item(self: Any, number: Any) -> Any:
        place = _number(number, count)
        if place is None:
            if not held:
                otherwise.add(_ROWS)
            return kind.__getitem__(self, number)
        if place == index:
            return copy.deepcopy(record)
        inside.append(None)
        try:
            return kind.__getitem__(self, number)
        finally:
            inside.pop()

    def attribute(self: Any, name: str) -> Any:
        if name in watched and not inside:
            otherwise.add(name)
        return getattribute(self, name)

    members: dict[str, Any] = {
        "__getitem__": item,
        "__getattribute__": attribute,
        "__len__": lambda self: count,
        "__reduce_ex__": kind.__reduce_ex__,
    }
    if hasattr(kind, "__getitems__"):
        members["__getitems__"] = lambda self, numbers: [item(self, number) for number in numbers]
    copied = _deep_copy(dataset)
    values = None if index is None else [*tree_flatten(record)[0], record]
    for name, place in held.items():
        if vars(copied)[name] is own[name]:  # the copy shares it
            vars(copied)[name] = _with_row(own[name], None, None)
        try:
            if values is not None:
                _put(vars(copied)[name], index, copy.deepcopy(values[place]))
            watched.discard(name)
        except (IndexError, TypeError, ValueError, RuntimeError):
            otherwise.add(name)
    try:
        copied.__class__ = type(kind.__name__, (kind,), members)
    except TypeError:  # of a class whose layout is fixed
        return _Wrapped(dataset, count, index, record, otherwise)
    return copied


_ROWS = "rows that are read by a slice, a list or a name"
# So many records are compared with rows of attributes.
_COMPARED = 30


class _Wrapped(Dataset[Any]):
    """A dataset behind another one, which gives another record in one place."""

    def __init__(
        self, dataset: Any, count: int, index: int | None, record: Any, otherwise: set[str]
    ) -> None:
        self._dataset, self._count, self._index, self._record = dataset, count, index, record
        self._otherwise = otherwise

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        place = _number(number, self._count)
        if place is None:
            self._otherwise.add(_ROWS)
        elif place == self._index:
            return copy.deepcopy(self._record)
        return self._dataset[number]


def _number(number: Any, count: int) -> int | None:
    """The number of a record from 0; None if several are asked for, or a name."""
    try:
        place = operator.index(number) if not getattr(number, "ndim", 0) else None
    except TypeError:
        return None
    return place + count if place is not None and place < 0 else place


def _deep_copy(dataset: Any) -> Any:
    """A copy that shares nothing, but for what is mapped from files; else, as far as it can be."""
    mapped = [
        member for member in getattr(dataset, "__dict__", {}).values() if type(member) is np.memmap
    ]
    try:
        return copy.deepcopy(dataset, {id(memmap): memmap for memmap in mapped})
    except Exception:  # such as of an open file
        return copy.copy(dataset)


def _holds(value: Any, count: int) -> bool:
    """Whether a value may have a row for each record, or is a dataset or holds such a value."""
    if isinstance(value, tuple | Mapping):
        own = value.values() if isinstance(value, Mapping) else value
        return any(
            _holds(member, count) for member in own if not isinstance(member, tuple | Mapping)
        )
    try:
        return isinstance(value, Dataset) or (
            hasattr(value, "__len__") and not isinstance(value, str) and len(value) == count
        )
    except TypeError:
        return False


def _held(dataset: Any, count: int) -> dict[str, int]:
    """By name, attributes with a row for each record, and which of its values they have.

    The value -1 is the whole record.
    """
    own = {
        name: value
        for name, value in getattr(dataset, "__dict__", {}).items()
        if type(value) in (Tensor, np.ndarray, list) and _holds(value, count)
    }
    if not own:
        return {}
    numbers = np.unique(np.linspace(0, count - 1, _COMPARED).astype(int)).tolist()
    records = [dataset[number] for number in numbers]
    values = [[*tree_flatten(record)[0], record] for record in records]
    positions = (*range(min(map(len, values)) - 1), -1)
    held = {}
    for name, rows in own.items():
        for place in positions:
            pairs = zip(numbers, values, strict=True)
            if all(_is_row(rows[number], leaves[place]) for number, leaves in pairs):
                held[name] = place
                break
    return held


def _is_row(row: Any, value: Any) -> bool:
    """Whether a row has a value, maybe in another precision or shape."""
    try:
        held, other = array_of(row), array_of(value)
    except (TypeError, ValueError, RuntimeError):
        return _same(row, value)
    if held.dtype.hasobject or other.dtype.hasobject or held.dtype.kind not in "fiub":
        return _same(row, value)
    return (
        held.size == other.size
        and (np.can_cast(held.dtype, other.dtype, "same_kind") or other.dtype.kind == "f")
        and _same(held.ravel().astype(other.dtype), other.ravel())
    )


def _put(rows: Any, index: Any, value: Any) -> None:
    """Puts a value in place of a row."""
    old = rows[index]
    if isinstance(old, Tensor):
        rows[index] = torch.as_tensor(value).reshape(old.shape).to(old)
    elif isinstance(old, np.ndarray | np.generic):
        rows[index] = np.reshape(array_of(value), old.shape)
    elif isinstance(old, bool | int | float):
        rows[index] = type(old)(array_of(value).item())
    else:
        rows[index] = value


def _same(value: Any, other: Any) -> bool:
    leaves, others = tree_flatten(value)[0], tree_flatten(other)[0]
    return len(leaves) == len(others) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(map(array_of, leaves), map(array_of, others), strict=True)
    )


def changed(record: Any, others: Sequence[Any], kind: str) -> Any:
    """A record as a replacement of some kind makes it of a record and other ones; None if it can't.

    Args:
        record: the one that is replaced.
        others: records of the dataset, of which a label or a whole record is taken.
        kind: one of `KINDS`.
    """
    leaves, tree = tree_flatten(record)
    if kind == "another label":
        return _with_another_label(leaves, tree, others)
    if kind == "another record":
        return next((other for other in others if not _same(other, record)), None)
    changed_leaves = [
        _value(leaf, kind, is_last=place == len(leaves) - 1) for place, leaf in enumerate(leaves)
    ]
    new = tree_unflatten(changed_leaves, tree)
    return None if _same(new, record) else new


# What a record is replaced by, in the order in which they are tried at two places.
KINDS = ("ten times as loud", "another label", "all zeros", "another record", "missing values")


def _value(value: Any, kind: str, *, is_last: bool) -> Any:
    if isinstance(value, str | bytes) or value is None:
        return type(value)() if kind == "all zeros" and value is not None else value
    array = array_of(value)
    is_label = is_last and array.size <= 1 and array.dtype.kind in "iub"
    if is_label or array.dtype.kind not in "iufb":
        return value
    if kind == "all zeros":
        return value * 0
    if kind == "ten times as loud" and array.dtype.kind == "f":
        return value * 10
    if kind == "missing values" and array.dtype.kind == "f" and array.size > 1:
        return value * float("nan")
    return value


def _with_another_label(leaves: list[Any], tree: Any, others: Sequence[Any]) -> Any:
    """The record with the label, which is its last value, of another record that differs in it."""
    for other in others:
        label = tree_flatten(other)[0][-1]
        if not _same(label, leaves[-1]):
            return tree_unflatten([*leaves[:-1], label], tree)
    return None
