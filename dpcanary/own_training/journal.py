"""The file of finished runs, one line each, so that a killed audit goes on where it stopped."""

import hashlib
import inspect
import json
import os
from dataclasses import asdict
from pathlib import Path

from dpcanary.errors import InputError
from dpcanary.own_training.one_run import OwnRun, Train


class Journal:
    """Finished runs of one training function and seed.

    Attributes:
        runs: by index.
    """

    def __init__(self, path: Path, *, train: Train, seed: int) -> None:
        """Opens or begins a journal.

        Args:
            path: a file of JSON lines.
            train: the user's function. Runs of another version of its source do not mix with
                those of this one.
            seed: of the audit.

        Raises:
            InputError: if the file holds runs of another function or seed, or something else.
        """
        self._path = path
        self.runs: dict[int, OwnRun] = {}
        header = {"seed": seed, "training": _fingerprint(train)}
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append(header)
            return
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        found = [line for line in lines if line.endswith("\n")]  # a killed write ends in no newline
        try:
            known, *runs = [json.loads(line) for line in found]
            self.runs = {one["run"]: OwnRun(**one) for one in runs}
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{path} is no journal of runs; delete it, or name another") from None
        if known != header:
            raise InputError(
                f"{path} holds runs of another seed, or of another version of the training; give"
                " another folder, or delete it to train all models again"
            )
        if len(found) < len(lines):
            path.write_text("".join(found), encoding="utf-8")

    def add(self, run: OwnRun) -> None:
        """Adds a finished run, safe from here on."""
        self.runs[run.run] = run
        self._append(asdict(run))

    def _append(self, line: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _fingerprint(train: Train) -> str:
    """The function's name and a hash of the file or cell that it stands in."""
    name = getattr(train, "__qualname__", type(train).__name__)
    try:
        source = inspect.getsource(inspect.getmodule(train) or train)
    except (OSError, TypeError):
        try:
            source = inspect.getsource(train)
        except (OSError, TypeError):
            source = ""
    return f"{name} {hashlib.sha256(source.encode()).hexdigest()[:16]}"
