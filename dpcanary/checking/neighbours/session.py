"""One run of a training under the check: what it does is noted, and compared with the first run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
import torch

from dpcanary.checking.neighbours.random_states import drawn_until_now
from dpcanary.checking.neighbours.records_seen import Batch, Reader
from dpcanary.checking.neighbours.tape import Array, Tape, array_of, like
from dpcanary.checking.neighbours.values_read import Read, Reads
from dpcanary.core.argument_checks import checked_real
from dpcanary.errors import InputError

Setting = float | str
# Parameters of a large model.
_LARGE = 1_000_000


class Ended(BaseException):
    """Ends a training from inside; no `except Exception` of the training's catches it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


ENOUGH, MORE_STEPS, OTHER_SHAPES, TIME = "enough", "more steps", "other shapes", "time"


@dataclass
class Compared:
    """How far a step's sum is from that of the first run; norms, in units of the sum.

    Attributes:
        total: over all tensors.
        largest: the name of the tensor with the largest difference.
        of_noise: the largest difference of a value of the noise.
        is_finite: whether the sum has neither NaN nor infinity.
    """

    total: float
    largest: str
    of_noise: float
    is_finite: bool


@dataclass
class Count:
    """A noisy count that is released beside the sums, as by adaptive clipping."""

    step: int
    name: str
    raw: float
    noisy: Any


@dataclass
class Step:
    """What is noted when noise is added to a sum.

    Attributes:
        settings: what the optimiser and the accountant are told, by name.
        parameters: checksums of the parameters just before, by name.
        norms: of the parameters.
        random: checksums of the states of generators.
        batches: records that were read since the step before.
        limit: C, to which the gradient of a record is clipped.
        scale: the norm of the sum of clipped gradients.
        rounding: relative precision of the numbers in the sum.
        compared: with the first run; None in that run.
    """

    settings: dict[str, Setting]
    parameters: dict[str, int]
    norms: dict[str, float]
    random: dict[str, int]
    batches: list[Batch]
    limit: float
    scale: float
    rounding: float
    compared: Compared | None = None


@dataclass
class Run:
    """What is noted of a whole training.

    Attributes:
        steps: one for each sum to which noise was added.
        counts: that were released beside the sums.
        released: what the training returned, by name; None if it did not end by itself.
        not_compared: parts of it of which nothing is known.
        random: checksums of the states of generators at the end.
        batches: records that were read after the last step.
        settings: what the accountant was told until the end.
        error: of the training.
        ended: why it was ended from outside.
        reads: values that the training took out of tensors.
        seconds: that it took.
    """

    steps: list[Step] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    released: dict[str, Any] | None = None
    not_compared: list[str] = field(default_factory=list)
    random: dict[str, int] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    settings: dict[str, Setting] = field(default_factory=dict)
    error: Exception | SystemExit | None = None
    ended: str = ""
    reads: list[Read] = field(default_factory=list)
    seconds: float = 0.0


class Session:
    """Writes the sums of the first run, and puts them in place of those of all later ones.

    Args:
        tape: where sums wait.
        reader: notes which records are read.
        first: the first run; None if this is it.
        num_steps: the training is ended after so many.
        on_step: called after each step.
        add_up: sums arrays over the processes of the training; None if it has one.
        all_batches: gives the batches of all processes; None if there is one.
        reads: notes the values that the training reads.
    """

    def __init__(
        self,
        tape: Tape,
        reader: Reader,
        *,
        first: Run | None = None,
        num_steps: int | None = None,
        on_step: Callable[[], object] = lambda: None,
        add_up: Callable[[Array], Array] | None = None,
        all_batches: Callable[[Sequence[Batch]], list[Batch]] | None = None,
        reads: Reads | None = None,
    ) -> None:
        self._tape, self.reader, self._first = tape, reader, first
        self._num_steps, self._on_step, self._add_up = num_steps, on_step, add_up
        self._all_batches = all_batches
        self.reads = reads or Reads()
        self.run, self._num_values = Run(), 0
        self.at_end: list[Callable[[], Mapping[str, Setting]]] = []

    @property
    def is_large(self) -> bool:
        """Whether two copies of the model are many."""
        return self._num_values > _LARGE

    def step(
        self,
        sums: Mapping[str, Any],
        noisy: Sequence[Any],
        *,
        limit: float,
        settings: Mapping[str, Setting],
        parameters: Mapping[str, Any],
        records: Any = None,
    ) -> list[Any]:
        """Notes a step, and gives the noisy sums with which the training is to go on."""
        number = len(self.run.steps)
        if self._first is not None and number >= len(self._first.steps):
            self.stop(MORE_STEPS)
        batches = self.reader.take_batches()
        if any(batch.loaded for batch in batches):  # what is read beside them prepares the data
            batches = [batch for batch in batches if batch.loaded]
        if records is not None:
            rows = np.atleast_1d(array_of(records)).astype(np.int64)
            batches = [Batch(rows, np.zeros(len(rows), np.uint64), loaded=True)]
        if self._all_batches is not None:
            batches = self._all_batches(batches)
        arrays = [array_of(tensor) for tensor in sums.values()]
        self._num_values = sum(array.size for array in arrays)
        step = Step(
            settings=dict(settings),
            parameters={name: checksum(own) for name, own in parameters.items()},
            norms={name: _norm(own) for name, own in parameters.items()},
            random=drawn_until_now(),
            batches=batches,
            limit=checked_real("max_grad_norm", limit),
            scale=float(np.sqrt(sum(_square(array) for array in arrays))),
            rounding=max((_rounding(tensor) for tensor in sums.values()), default=0.0),
        )
        self.run.steps.append(step)
        if self._first is None:
            self._tape.write(number, "sums", arrays)
            self._tape.write(number, "noisy", [array_of(tensor) for tensor in noisy])
            returned = list(noisy)
        else:
            returned = self._replayed(number, step, dict(zip(sums, arrays, strict=True)), noisy)
        self._on_step()
        if self._num_steps is not None and number + 1 >= self._num_steps:
            self.stop(ENOUGH)
        return returned

    def _replayed(
        self, number: int, step: Step, sums: Mapping[str, Array], noisy: Sequence[Any]
    ) -> list[Any]:
        before = self._tape.read(number, "sums", len(sums))
        frozen = self._tape.read(number, "noisy", len(sums))
        total, largest, name_of_largest, of_noise = 0.0, -1.0, "", 0.0
        is_finite = True
        for name, own, other, kept, now in zip(
            sums, sums.values(), before, frozen, noisy, strict=True
        ):
            if own.shape != other.shape:
                self.stop(OTHER_SHAPES)
            difference = own.astype(np.float64) - other
            noise = array_of(now).astype(np.float64) - own - (kept.astype(np.float64) - other)
            if self._add_up is not None:
                difference, noise = self._add_up(difference), self._add_up(noise)
            square = _square(difference)
            is_finite &= bool(np.isfinite(difference).all())
            total += square
            if square > largest:
                largest, name_of_largest = square, name
            if noise.size:
                of_noise = max(of_noise, float(np.nan_to_num(np.abs(noise), nan=np.inf).max()))
        step.compared = Compared(float(np.sqrt(total)), name_of_largest, of_noise, is_finite)
        return [like(kept, now) for kept, now in zip(frozen, noisy, strict=True)]

    def stop(self, why: str) -> NoReturn:
        """Ends the training from outside."""
        self.run.ended = why  # a compiled training turns the exception into one of its own
        raise Ended(why)

    def count(self, name: str, raw: float, noisy: Any) -> Any:
        """Notes a noisy count, and gives the one with which the training is to go on."""
        number = len(self.run.counts)
        self.run.counts.append(Count(len(self.run.steps), name, raw, noisy))
        if self._first is None:
            return noisy
        if number >= len(self._first.counts):
            self.stop(MORE_STEPS)
        return self._first.counts[number].noisy

    def end(self) -> None:
        """Notes what is known when the training has ended."""
        self.run.random = drawn_until_now()
        self.run.batches = self.reader.take_batches()
        for ask in self.at_end:
            self.run.settings.update(ask())


_sessions: list[Session] = []


def current() -> Session | None:
    """The run that is being noted; None outside of a check."""
    return _sessions[-1] if _sessions else None


def begin(session: Session) -> None:
    """Makes a session the current one."""
    if _sessions:
        raise InputError("a training that is checked cannot check another one")
    _sessions.append(session)


def finish() -> None:
    """Ends the current session."""
    _sessions.clear()


def checksum(value: Any) -> int:
    """A checksum of the values of a tensor or an array."""
    array = np.ascontiguousarray(array_of(value))
    if array.dtype.hasobject:
        return crc32(repr(array.tolist()).encode())
    return crc32(array.reshape(-1).view(np.uint8).data)


def _norm(value: Any) -> float:
    return float(np.sqrt(_square(array_of(value))))


def _square(value: Array) -> float:
    flat = value.reshape(-1)
    if flat.dtype.kind not in "fiub":
        return 0.0
    with np.errstate(all="ignore"):
        return (
            float(np.vdot(flat, flat))
            if flat.dtype == np.float64
            else float(np.square(flat, dtype=np.float64).sum())
        )


def _rounding(value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        return float(torch.finfo(value.dtype).eps)
    dtype = np.asarray(value).dtype
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
