"""What a training returns: taken apart into named values, and compared with another run's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
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


def released(result: Any) -> tuple[dict[str, Value], list[str]]:
    """The values of what a training returned, by name, and the parts of which nothing is known."""
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
        known = not (isinstance(value, np.ndarray) and value.dtype == object)
        yield from (
            _of_path(Path(str(value)), name)
            if _is_path(value)
            else [(name, value if known else _UNKNOWN)]
        )
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
    elif hasattr(value, "__array__"):
        yield name, np.asarray(value)
    elif hasattr(value, "accountant"):
        return  # an engine of Opacus; its history is compared as a setting
    elif isinstance(value, DataLoader | Dataset | FunctionType | type):
        yield name, _UNKNOWN  # records, or code
    elif hasattr(value, "__dict__"):
        yield from _parts(dict(vars(value)), name, depth + 1)
    else:
        yield name, _UNKNOWN


def _of_module(module: nn.Module, name: str) -> Iterator[tuple[str, Any]]:
    """All that a module saves, and buffers that it does not save."""
    inner = getattr(module, "_module", module)
    state = {**dict(inner.named_buffers()), **inner.state_dict()}
    for own, value in state.items():
        if isinstance(value, Tensor):
            yield _joined(name, own), value
        else:  # what get_extra_state gives
            yield from _parts(value, _joined(name, own), 1)


def _is_path(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(value) < 1024 and Path(value).exists()
    except (OSError, ValueError):
        return False


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
