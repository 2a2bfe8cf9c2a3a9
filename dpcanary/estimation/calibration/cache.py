"""Arrays that are computed once and kept on disk, in a folder of the user's own.

A file is believed if it says that it is what is asked for, and its content has the hash that it
states. Who can write to the folder could still plant a file: so a folder that others may write to
is not used.
"""

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from platformdirs import user_cache_path

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, sha256_of_text, write_arrays

Arrays = Mapping[str, NDArray[Any]]

# Part of every file's name. Raised when the content of the files changes.
_FORMAT = 4


def cache_folder() -> Path:
    """Where the files are: `DPCANARY_CACHE`, or the user's folder for caches."""
    return Path(os.environ.get("DPCANARY_CACHE") or user_cache_path("dpcanary"))


def cached_arrays(kind: str, *, about: str, compute: Callable[[], Arrays]) -> Arrays:
    """The arrays of a computation, from its file if there is one.

    Jobs that need the same arrays at the same time wait for the one that computes them.

    Args:
        kind: beginning of the file's name.
        about: all that the result depends on. It is also written into the file.
        compute: makes the arrays.
    """
    path = cache_folder() / f"{kind}-{sha256_of_text(f'{_FORMAT} {about}')[:24]}.npz"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_private(path.parent)
        found = _read(path, about)
        if found is not None:
            return found
        with FileLock(path.with_suffix(".lock")):
            found = _read(path, about)
            if found is None:
                found = dict(compute())
                _keep(path, about, found)
            return found
    except OSError as error:
        logging.warning("%s is not kept for later: %s; set DPCANARY_CACHE", kind, error)
        return compute()


def _keep(path: Path, about: str, found: dict[str, NDArray[Any]]) -> None:
    try:
        write_arrays(path, header={"about": about, "sha256": _digest(found)}, arrays=found)
    except InputError as error:  # for example, the disk is full: the values are there
        logging.warning("%s; they are not kept for later", error)


def _check_private(folder: Path) -> None:
    """Raises an OSError if others than the user may write to the folder."""
    found = folder.stat()
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"others may write to {folder}, or own it")


def _read(path: Path, about: str) -> dict[str, NDArray[Any]] | None:
    """The content of a file; None if it is missing, damaged, or of another computation."""
    try:
        header, arrays = read_arrays(path)
    except InputError:
        return None
    is_right = header.get("about") == about and header.get("sha256") == _digest(arrays)
    return arrays if is_right else None


def _digest(arrays: Arrays) -> str:
    """A hash of the arrays' names, types, shapes and numbers."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
