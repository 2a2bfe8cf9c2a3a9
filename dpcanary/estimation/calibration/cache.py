"""Arrays that are computed once and kept on disk."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from numpy.typing import NDArray
from platformdirs import user_cache_path

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, sha256_of_text, write_arrays

Arrays = Mapping[str, NDArray[Any]]

# Part of every file's name. Raised when the content of the files changes.
_FORMAT = 3


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
    found = _read(path)
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            found = _read(path)
            if found is None:
                found = dict(compute())
                write_arrays(path, header={"about": about}, arrays=found)
            return found
    except OSError as error:
        logging.warning("%s is not kept for later: %s; set DPCANARY_CACHE", kind, error)
        return compute()


def _read(path: Path) -> dict[str, NDArray[Any]] | None:
    """The content of a file, or None if it is missing or damaged."""
    try:
        return read_arrays(path)[1]
    except InputError:
        return None
