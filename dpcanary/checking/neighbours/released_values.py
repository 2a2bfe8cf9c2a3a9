"""What a training returns: taken apart into named values, and compared with another run's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dpcanary.checking.neighbours.session import checksum
from dpcanary.checking.neighbours.tape import array_of

# Values of a file or a tensor that are larger are compared by a checksum alone.
_MOST_VALUES = 50_000_000
_DEEPEST = 8
# So many files of a folder are looked at for one that was written, by clocks that are so far apart.
_MOST_FILES, _SECONDS = 10_000, 2.0


@dataclass(frozen=True)
class Value:
    """A value that was released: an array, or anything else as text; of a large one, a checksum."""

    array: Any
    text: str
    is_whole: bool = True

    def difference(self, other: "Value") -> float:
        """The largest difference; 0 if both are equal, infinity if they are of other shapes."""
        if self.text == other.text:
            return 0.0
        if self.array is None or other.array is None or self.array.shape != other.array.shape:
            return float("inf")
        if self.array.dtype.kind not in "fiub":
            return float("inf")
        with np.errstate(all="ignore"):
            apart = np.abs(self.array.astype(np.float64) - other.array)
        if not _is_real(self.array):  # whole numbers above 2^53 are rounded
            apart = np.maximum(apart, self.array != other.array)
        is_same = np.isnan(self.array) & np.isnan(other.array) if _is_real(self.array) else False
        apart = np.where(is_same, 0.0, apart)
        return float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0))

    @property
    def size(self) -> float:
        """The largest absolute value."""
        if self.array is None or not _is_real(self.array):
            return 0.0
        return float(np.abs(self.array).max(initial=0.0))


def _is_real(array: Any) -> bool:
    return bool(array.dtype.kind == "f")


def released(result: Any, since: float = 0.0) -> tuple[dict[str, Value], list[str]]:
    """The values of what a training returned, by name, and the parts of which nothing is known.

    Args:
        result: that it returned.
        since: the time at which it began. Text in the result, or in a list or dict that is the
            result, is a path if what it names was written since.
    """
    if isinstance(result, Mapping):
        result = {name: _as_path(value, since) for name, value in result.items()}
    elif type(result) in (list, tuple):
        result = [_as_path(value, since) for value in result]
    else:
        result = _as_path(result, since)
    values: dict[str, Value] = {}
    unknown: list[str] = []
    for name, value in _parts(result, "", 0):
        if value is _UNKNOWN:
            unknown.append(name or "what was returned")
        else:
            values[name or "what was returned"] = _value(value)
    return values, unknown


_UNKNOWN = object()


def _value(value: Any) -> Value:
    if isinstance(value, bytes):
        return Value(None, f"{len(value)} bytes, {checksum(np.frombuffer(value, np.uint8))}")
    if isinstance(value, str | None):
        return Value(None, repr(value))
    array = np.array(array_of(value))
    text = f"{array.shape} {checksum(array)}"
    return Value(array if array.size <= _MOST_VALUES else None, text)


def _parts(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The leaves of a result."""
    if depth > _DEEPEST:
        yield name, _UNKNOWN
    elif isinstance(value, Tensor | np.ndarray | bool | int | float | str | bytes | np.generic):
        is_of_objects = isinstance(value, np.ndarray) and value.dtype.hasobject
        yield name, _of_objects(value) if is_of_objects else value
    elif value is None:
        yield name, None
    elif isinstance(value, Path):
        yield from _of_path(value, name)
    elif isinstance(value, nn.Module):
        yield from _of_module(value, name)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(part, _joined(name, str(key)), depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        for place, part in enumerate(ordered):
            yield from _parts(part, _joined(name, str(place)), depth + 1)
    elif hasattr(value, "state_dict"):
        yield from _parts(value.state_dict(), name, depth + 1)
    elif is_dataclass(value):
        for own in fields(value):
            yield from _parts(getattr(value, own.name), _joined(name, own.name), depth + 1)
    elif hasattr(value, "columns") and hasattr(value, "items"):  # a table of pandas
        yield from _parts(np.asarray(value.index), _joined(name, "index"), depth + 1)
        for place, (column, own) in enumerate(value.items()):
            yield from _parts(np.asarray(own), _joined(name, f"{place}.{column}"), depth + 1)
    elif hasattr(value, "__array__"):
        if hasattr(value, "index") and not callable(value.index):  # a series
            yield from _parts(np.asarray(value.index), _joined(name, "index"), depth + 1)
        yield from _parts(np.asarray(value), name, depth + 1)
    elif type(value).__module__.startswith("opacus."):
        return  # an engine; its history is compared as a setting
    elif isinstance(value, DataLoader | Dataset | FunctionType | type):
        yield name, _UNKNOWN  # records, or code
    elif hasattr(value, "__dict__"):
        yield from _parts(dict(vars(value)), name, depth + 1)
    else:
        yield name, _UNKNOWN


def _of_objects(array: Any) -> Any:
    """The text of an array of text, numbers and dates; of other objects nothing is known."""
    plain = str | bytes | bool | int | float | date | np.generic | None
    if all(isinstance(element, plain) for element in array.reshape(-1).tolist()):
        return repr(array.tolist())
    return _UNKNOWN


def _of_module(module: nn.Module, name: str) -> Iterator[tuple[str, Any]]:
    """All that a module saves, and buffers that it does not save."""
    inner = getattr(module, "_module", module)
    state = {**dict(inner.named_buffers()), **inner.state_dict()}
    for own, value in state.items():
        if isinstance(value, Tensor):
            yield _joined(name, own), value
        else:  # what get_extra_state gives
            yield from _parts(value, _joined(name, own), 1)


def _as_path(value: Any, since: float) -> Any:
    """Text as a path if it names a file or folder that was written since, else the value."""
    if not isinstance(value, str) or not 0 < len(value) < 1024:
        return value
    path = Path(value)
    try:
        files = [path, *islice(path.rglob("*"), _MOST_FILES)] if path.is_dir() else [path]
        states = [own.stat() for own in files]
        is_written = any(max(state.st_mtime, state.st_ctime) > since - _SECONDS for state in states)
    except (OSError, ValueError):
        return value
    return path if is_written else value


def _of_path(path: Path, name: str) -> Iterator[tuple[str, Any]]:
    """The content of a file, or of all files in a folder."""
    if path.is_dir():
        for own in sorted(path.rglob("*")):
            if own.is_file():
                yield from _of_path(own, _joined(name, str(own.relative_to(path))))
        return
    if not path.exists():
        yield name or path.name, _UNKNOWN
        return
    if path.suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as arrays:
                for own in arrays.files:
                    yield _joined(name or path.name, own), arrays[own]
            return
        except (ValueError, OSError):
            pass  # it is compared as it is
    if path.suffix in (".pt", ".pth", ".bin"):
        try:  # without running what is pickled in it
            saved = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:
            saved = None
        if saved is not None:
            yield from _parts(saved, name or path.name, 1)
            return
    yield name or path.name, path.read_bytes()


def _joined(name: str, own: str) -> str:
    return f"{name}.{own}" if name else own
