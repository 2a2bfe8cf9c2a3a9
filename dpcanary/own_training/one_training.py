"""One training of the user's own, with a seed of its own, and the file of finished ones."""

import functools
import hashlib
import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from dpcanary.accounting.mechanism import Phase
from dpcanary.accounting.of_opacus import (
    accounted_steps,
    changed_phases,
    noted_sampling,
    noted_sampling_of,
    samples_poisson,
)
from dpcanary.core.files import write_text
from dpcanary.core.global_generators import seed_global_generators
from dpcanary.core.randomness import generator
from dpcanary.core.sealed_tables import sealed, unsealed
from dpcanary.errors import InputError
from dpcanary.estimation.planned_looks import Look


class Purpose(IntEnum):
    """Part of every stream's key: never reuse or change a number, in any package."""

    OWN_TRAINING = 22  # the seed of one training of the user's own


# Takes a seed and a world. Gives a score, or a score and Opacus's privacy engine.
Train = Callable[[int, int], Any]


@dataclass(frozen=True)
class OwnRun:
    """What is kept of a run: its index, its score (higher: world 0 is likelier) and its seconds.

    Even runs are in world 0, odd ones in world 1. What Opacus has accounted is None if the training
    did not return its privacy engine; `poisson_sampling` is None if it is not known. If noise or
    sample rate changed in the training, `phases` has what was accounted, and nothing else does.
    """

    run: int
    score: float
    seconds: float
    noise_multiplier: float | None = None
    sample_rate: float | None = None
    num_steps: int | None = None
    poisson_sampling: bool | None = None
    phases: tuple[Phase, ...] = ()

    @property
    def world(self) -> int:
        """0 or 1."""
        return self.run % 2

    @property
    def mechanism(self) -> tuple[float | None, float | None, int | None]:
        """What Opacus has accounted: noise multiplier, sample rate and number of steps."""
        return self.noise_multiplier, self.sample_rate, self.num_steps


def train_one(train: Train, *, run: int, seed: int) -> OwnRun:
    """Trains one model, whose index fixes its world and its randomness.

    The generators of Python, NumPy and PyTorch are seeded for this run before, so that a training
    that draws from them, as Opacus does for its noise, differs from run to run.

    Raises:
        InputError: if the function fails, or returns no score.
    """
    world = run % 2
    run_seed = int(generator(seed=seed, purpose=Purpose.OWN_TRAINING, index=run).integers(2**63))
    seed_global_generators(run_seed)
    was_imported = "opacus" in sys.modules
    start = time.perf_counter()
    try:
        with noted_sampling():
            returned = train(run_seed % 2**31, world)
    except Exception as error:
        raise InputError(
            f"run {run} (world {world}) failed: {type(error).__name__}: {error}"
        ) from error
    seconds = time.perf_counter() - start
    score, engine = returned, None
    if isinstance(returned, tuple) and len(returned) == 2:
        score, engine = returned
    phases = changed_phases(engine)
    is_one = engine is not None and not phases
    accounted = accounted_steps(engine) if is_one else (None, None, None)
    sampling = noted_sampling_of(engine)
    if sampling is None and engine is not None and not was_imported:
        sampling = samples_poisson(engine)  # the training has imported Opacus just now
    score = _checked_score(score, run)
    return OwnRun(run, score, seconds, *accounted, poisson_sampling=sampling, phases=phases)


def _checked_score(score: Any, run: int) -> float:
    try:
        number = float(score)
    except (TypeError, ValueError):
        raise InputError(
            f"run {run}: the training returned {score!r:.60}; it must return a score, or a score"
            " and Opacus's privacy engine"
        ) from None
    if np.isnan(number):
        raise InputError(f"run {run}: the score is NaN; has the training diverged?")
    return number


class Journal:
    """The file of finished runs of one training function and seed, one line each.

    A killed audit goes on where it stopped. A process holds the file while it is open.

    Attributes:
        runs: by index.
        looks: the numbers of runs that were evaluated before, each with the looks planned then.
    """

    def __init__(self, path: Path, *, train: Train, seed: int) -> None:
        """Opens or begins a journal, a file of JSON lines, each with a checksum.

        Raises:
            InputError: if another process holds the file, or it has runs of another function or
                seed, or something else, or was changed.
        """
        self._path = path
        self.runs: dict[int, OwnRun] = {}
        self.looks: list[Look] = []
        header = {"seed": seed, "training": _fingerprint(train)}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(f"{path}.lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise InputError(f"another audit writes to {path}: wait for it") from None
        try:
            self._read(header)
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Lets other processes have the file, which is removed if no run was finished."""
        if not self.runs and not self.looks:
            self._path.unlink(missing_ok=True)
        self._lock.release()

    def add(self, run: OwnRun) -> None:
        """Adds a finished run, safe from here on."""
        self.runs[run.run] = run
        self._append(asdict(run))

    def add_look(self, num_runs: int, planned: tuple[int, ...] = ()) -> None:
        """Notes that so many runs are evaluated, and which looks are planned."""
        if (num_runs, planned) not in self.looks:
            self.looks.append((num_runs, planned))
            self._append({"look": num_runs, "planned": planned})

    def _read(self, header: dict[str, object]) -> None:
        foreign = InputError(f"{self._path} is no journal of runs; delete it, or name another")
        try:
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        except UnicodeDecodeError:
            raise foreign from None
        lines = text.splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]  # a killed write ends in no newline
        if not whole:
            if not sealed(header).startswith(text):
                raise foreign
            write_text(self._path, sealed(header) + "\n")
            return
        try:
            kept_header, *entries = [unsealed(dict(json.loads(line)), self._path) for line in whole]
            runs = [_run_of(entry) for entry in entries if "look" not in entry]
            self.looks = [
                (int(entry["look"]), tuple(entry.get("planned", ())))
                for entry in entries
                if "look" in entry
            ]
        except InputError:
            raise
        except (ValueError, TypeError):
            raise foreign from None
        self.runs = {run.run: run for run in runs}
        if kept_header != header:
            raise InputError(
                f"{self._path} holds runs of another seed, or of another version of the training;"
                " give another folder, or delete it to train all models again"
            )
        if len(whole) < len(lines):
            write_text(self._path, "".join(whole))

    def _append(self, line: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(sealed(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _run_of(entry: dict[str, Any]) -> OwnRun:
    phases = tuple(Phase(**phase) for phase in entry.get("phases", ()))
    return OwnRun(**{**entry, "phases": phases})


def _fingerprint(train: Train) -> str:
    """The function's name, with a hash of what is bound to it and of its file or cell.

    Arrays count by their content, and all else by `repr`.
    """
    bound: list[Any] = []
    while isinstance(train, functools.partial):
        bound.append((train.args, sorted(train.keywords.items())))
        train = train.func
    called: Any = train
    if inspect.ismethod(called):
        bound.append((type(called.__self__).__qualname__, _attributes(called.__self__)))
    elif not inspect.isroutine(called):  # an object that can be called
        bound.append(_attributes(called))
        called = type(called)
    try:
        module = inspect.getmodule(called)
        place = module if module and hasattr(module, "__file__") else called
        if inspect.getsourcefile(place) == "<string>":
            raise OSError  # Python 3.13 takes the text of `python -c` for its source
        source = inspect.getsource(place)
    except (OSError, TypeError):
        raise InputError(
            "the training has no source that can be read, so its runs could not be told from those"
            " of another version: define it in a file or in a notebook's cell"
        ) from None
    bound = _with_hashed_arrays(bound)
    digest = hashlib.sha256(f"{source}{bound!r}".encode()).hexdigest()[:16]
    return f"{called.__qualname__} {digest}"


def _attributes(owner: Any) -> Any:
    has_own = hasattr(owner, "__dict__") and not isinstance(owner, type)
    return sorted(vars(owner).items()) if has_own else repr(owner)


def _with_hashed_arrays(value: Any) -> Any:
    """The value, whose arrays are replaced by their type, shape and hash.

    `repr` leaves out numbers of a large array, and rounds them.
    """
    if type(value) in (list, tuple):
        return type(value)(_with_hashed_arrays(part) for part in value)
    if isinstance(value, dict):
        return {name: _with_hashed_arrays(part) for name, part in value.items()}
    if not hasattr(value, "__array__") or isinstance(value, np.generic | type):
        return value
    array = value.to_records() if hasattr(value, "to_records") else value  # with names of columns
    if isinstance(value, torch.Tensor):
        array = value.detach().cpu().to_dense()
        if array.is_floating_point():  # NumPy has no bfloat16
            array = array.double()
    array = np.asarray(array)
    kind = str(getattr(value, "dtype", array.dtype))
    if array.dtype.hasobject:
        return kind, array.tolist()
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return kind, array.shape, hashlib.sha256(flat.tobytes()).hexdigest()
