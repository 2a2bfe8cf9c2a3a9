"""The file of finished runs, one line each, so that a killed audit goes on where it stopped."""

import functools
import hashlib
import inspect
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dpcanary.errors import InputError
from dpcanary.files import write_text
from dpcanary.own_training.one_run import OwnRun, Train


class Journal:
    """Finished runs of one training function and seed. A process holds it while it is open.

    Attributes:
        runs: by index.
        looks: the numbers of runs that were evaluated before, ascending.
    """

    def __init__(self, path: Path, *, train: Train, seed: int) -> None:
        """Opens or begins a journal, a file of JSON lines.

        Raises:
            InputError: if another process holds the file, or it has runs of another function or
                seed, or something else.
        """
        self._path = path
        self.runs: dict[int, OwnRun] = {}
        self.looks: list[int] = []
        header = {"seed": seed, "training": _fingerprint(train)}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(f"{path}.lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise InputError(f"another audit writes to {path}: wait for it") from None
        try:
            self._read(header)
        except InputError:
            self._lock.release()
            raise

    def close(self) -> None:
        """Lets other processes have the file."""
        self._lock.release()

    def add(self, run: OwnRun) -> None:
        """Adds a finished run, safe from here on."""
        self.runs[run.run] = run
        self._append(asdict(run))

    def add_look(self, num_runs: int) -> None:
        """Notes that so many runs are evaluated."""
        if num_runs not in self.looks:
            self.looks = sorted([*self.looks, num_runs])
            self._append({"look": num_runs})

    def _read(self, header: dict[str, object]) -> None:
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        lines = text.splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]  # a killed write ends in no newline
        if not whole:
            write_text(self._path, json.dumps(header) + "\n")
            return
        try:
            known, *entries = [json.loads(line) for line in whole]
            runs = [OwnRun(**entry) for entry in entries if "look" not in entry]
            self.looks = sorted(int(entry["look"]) for entry in entries if "look" in entry)
        except (ValueError, TypeError):
            raise InputError(
                f"{self._path} is no journal of runs; delete it, or name another"
            ) from None
        self.runs = {run.run: run for run in runs}
        if known != header:
            raise InputError(
                f"{self._path} holds runs of another seed, or of another version of the training;"
                " give another folder, or delete it to train all models again"
            )
        if len(whole) < len(lines):
            write_text(self._path, "".join(whole))

    def _append(self, line: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _fingerprint(train: Train) -> str:
    """The function's name, what is bound to it, and a hash of the file or cell it stands in."""
    bound: list[Any] = []
    while isinstance(train, functools.partial):
        bound.append((train.args, sorted(train.keywords.items())))
        train = train.func
    own: Any = train
    if not inspect.isroutine(own):  # an object that can be called
        bound.append(sorted(vars(own).items()) if hasattr(own, "__dict__") else repr(own))
        own = type(own)
    try:
        module = inspect.getmodule(own)
        place = module if module and hasattr(module, "__file__") else own
        if inspect.getsourcefile(place) == "<string>":
            raise OSError  # Python 3.13 takes the text of `python -c` for its source
        source = inspect.getsource(place)
    except (OSError, TypeError):
        raise InputError(
            "the training has no source that can be read, so its runs could not be told from those"
            " of another version: define it in a file or in a notebook's cell"
        ) from None
    digest = hashlib.sha256(f"{source}{bound!r}".encode()).hexdigest()[:16]
    return f"{own.__qualname__} {digest}"
