"""Values that the code of a training takes out of tensors, by which it may decide something.

A loss that depends on a record is harmless if it is printed, and a leak if it ends the training.
Few replacements are likely to make it cross the threshold. So values that were seen to depend on
the record are moved further in a run of its own, as a record that is more extreme would do.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

from torch import Tensor

# Code of these packages is not the training's own.
_LIBRARIES = ("torch", "opacus", "dpcanary", "numpy", "jax", "optax", "transformers")
# A value is moved by so many times what a record was seen to change it.
_TIMES = 30.0
# So many values are remembered, at most.
_MOST = 200_000


@dataclass(frozen=True)
class Read:
    """A value that was read, and the line of code that did."""

    place: str
    value: float


# How values are moved: by a factor for the value of some number at a place.
MOVES: Mapping[str, Callable[[int], float]] = {
    "rising": lambda number: number + 1.0,
    "falling": lambda number: -number - 1.0,
    "at random": lambda number: Random(number).choice((-1.0, 1.0)),
}


class Reads:
    """The values that one run reads.

    Args:
        spans: by place, by how much a record was seen to change a value; empty if nothing is moved.
        factor: by which the value of some number at a place is moved.
    """

    def __init__(
        self, spans: Mapping[str, float] | None = None, factor: Callable[[int], float] | None = None
    ) -> None:
        self.values: list[Read] = []
        self._spans, self._factor = spans or {}, factor
        self._counts: dict[str, int] = {}

    def seen(self, value: float, place: str) -> float:
        """Notes a value, and gives the one with which the training goes on."""
        if len(self.values) < _MOST:
            self.values.append(Read(place, value))
        span = self._spans.get(place)
        if span is None or self._factor is None:
            return value
        number = self._counts[place] = self._counts.get(place, -1) + 1
        return value + self._factor(number) * _TIMES * span


def spans_of(first: Sequence[Read], others: Sequence[Sequence[Read]]) -> dict[str, float]:
    """By place, by how much values of other runs differ from those of the first one."""
    spans: dict[str, float] = {}
    for other in others:
        for before, now in zip(first, other, strict=False):
            if before.place != now.place:
                break  # another branch was taken
            size = abs(now.value - before.value)
            if size > 0 and isfinite(size):
                spans[before.place] = max(spans.get(before.place, 0.0), size)
    return spans


@contextmanager
def values_noted(reads: Reads) -> Iterator[None]:
    """While inside, values that the training's own code takes out of tensors are noted."""
    kind: Any = Tensor
    names = ("item", "__float__")
    originals = {name: getattr(kind, name) for name in names}
    own = {name: kind.__dict__[name] for name in names if name in kind.__dict__}

    def noting(name: str) -> Callable[[Any], Any]:
        original = originals[name]

        def read(tensor: Any) -> Any:
            value = original(tensor)
            if not isinstance(value, float):
                return value
            frame = sys._getframe(1)
            if frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
                return value
            file = Path(frame.f_code.co_filename).name
            return reads.seen(value, f"{file}, line {frame.f_lineno}")

        return read

    for name in names:
        setattr(kind, name, noting(name))
    try:
        yield
    finally:
        for name in names:
            if name in own:
                setattr(kind, name, own[name])
            else:
                delattr(kind, name)
