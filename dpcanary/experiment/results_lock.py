"""One run of an experiment at a time, by a lock of the kernel, which ends with who holds it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from dpcanary.core.files import is_alive
from dpcanary.errors import InputError

# In the environment of a workflow: the process of the command that started it, which holds the lock
# and prints the results.
BY_COMMAND = "DPCANARY_BY_COMMAND"
# What a run says last that has not finished.
GOES_ON = "The same command goes on from here: what is finished is kept."
STARTS_AGAIN = "Nothing was kept: the same command starts from the beginning."
# Seconds after an interruption in which a run ends by itself; then it is killed.
PATIENCE = 60.0
_HELD = ExitStack()


def hold_lock(results: Path) -> None:
    """Locks a results folder until this process ends.

    Raises:
        InputError: if another run holds the lock.
    """
    _HELD.enter_context(locked(results))


@contextmanager
def locked(results: Path) -> Iterator[tuple[Path, int]]:
    """A results folder, made if it is missing, and the descriptor of its lock, held while inside.

    A folder that was made for this, and into which nothing was written, is removed afterwards.

    Raises:
        InputError: if another run holds it.
    """
    path, is_new = results / ".lock", not results.exists()
    is_first = not results.parent.exists()
    try:
        results.mkdir(parents=True, exist_ok=True)
        # A link is not followed: what it points to must not be written to.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        link = " (it is a link; remove it)" if path.is_symlink() else ""
        raise InputError(f"{path} cannot be made: {error.strerror}{link}") from None
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(descriptor)):
                raise BlockingIOError  # who made it has just removed it
        except BlockingIOError:
            raise InputError(
                f"another run{_holder(file)} works on {results}; wait for it, or stop it"
            ) from None
        except OSError as error:
            raise InputError(f"{results} cannot be locked: {error.strerror}") from None
        write_holder(descriptor, os.getpid())
        try:
            yield results, descriptor
        finally:
            if is_new and [*results.iterdir()] == [path]:
                path.unlink()
                results.rmdir()
                if is_first and not any(results.parent.iterdir()):
                    results.parent.rmdir()


def write_holder(lock: int, *processes: int) -> None:
    """Writes which processes hold a lock into its file; the first one is the user's command."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, " ".join(map(str, processes)).encode(), 0)


def _holder(file: TextIO) -> str:
    """The process that holds a lock, in words; nothing if it is not known."""
    for word in file.read(100).split():
        # One that was killed holds nothing: a process that it started does.
        if word.isdecimal() and is_alive(int(word)):
            return f" (process {word})"
    return ""
