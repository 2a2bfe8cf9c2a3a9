"""Reads and writes files: writing is atomic, reading is checked and never runs code.

A file that cannot be written, is missing or is damaged is an `InputError`.
"""

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError

Arrays = Mapping[str, NDArray[Any]]
_NAMES = "arrays"  # in the header
_HOST = re.sub(r"\W+", "-", platform.node())


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a file whole or not at all: a temporary file beside it is moved to its place.

    What a killed process of this machine has left of an earlier try is removed.
    """
    # Processes of several machines may share the folder, and the number.
    part = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        reason = error.strerror
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = f"{reason}; free some space, then run again: finished files are kept"
        raise InputError(f"cannot write {path}: {reason}") from error
    finally:
        with contextlib.suppress(OSError):  # the folder may not exist
            part.unlink()
    with contextlib.suppress(OSError):  # another user's: the file itself is written
        _remove_leftovers(path)


def _remove_leftovers(path: Path) -> None:
    """Removes temporary files of a path whose process, of this machine, is no more."""
    own = f".{path.name}.{_HOST}."
    for leftover in path.parent.iterdir():
        if leftover.name.startswith(own) and leftover.suffix == ".part":
            process = leftover.name.removeprefix(own).partition("-")[0]
            if process.isdecimal() and not is_alive(int(process)):
                leftover.unlink(missing_ok=True)


def is_alive(process: int) -> bool:
    """Whether a process of this machine runs, whoever's it is."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


@contextlib.contextmanager
def reading(path: Path, *, what: str, remedy: str) -> Iterator[None]:
    """Turns any error while a file is read into an `InputError` that names it.

    A damaged byte leads readers of archives to errors of many kinds: of keys, of syntax, of methods
    that they do not have.

    Args:
        path: the file.
        what: it is not, in words.
        remedy: what to do.
    """
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except MemoryError as error:
        raise InputError(
            f"{path} does not fit into memory, or is damaged ({error or 'out of memory'})"
        ) from None
    except Exception as error:
        raise InputError(f"{path} {what} ({error or type(error).__name__}); {remedy}") from None


def write_arrays(
    path: Path, *, header: Mapping[str, Any], arrays: Arrays, origin: str = ""
) -> None:
    """Writes named arrays and a JSON header as one .npz, without pickle."""
    # A damaged directory may leave out an array.
    whole = {**header, _NAMES: sorted(arrays), **({"origin": origin} if origin else {})}
    text = np.frombuffer(json.dumps(whole, sort_keys=True).encode(), dtype=np.uint8)
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, header=text, **arrays))


def read_arrays(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Reads a file of `write_arrays`: (header, arrays)."""
    arrays = read_npz(path)
    header = _parsed(path, arrays.pop("header", None))
    if header.pop(_NAMES, None) != sorted(arrays):
        raise InputError(
            f"{path} does not hold the arrays that were written into it: it was damaged, or is of"
            " an older version of dpcanary; delete it and run again"
        )
    return header, arrays


def read_header(path: Path) -> dict[str, Any]:
    """Only the header of a file of `write_arrays`."""
    header = _parsed(path, read_npz(path, names=("header",)).get("header"))
    header.pop(_NAMES, None)
    return header


def _parsed(path: Path, header: NDArray[Any] | None) -> dict[str, Any]:
    try:
        parsed = json.loads(b"" if header is None else header.tobytes())
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InputError(f"{path} was not written by dpcanary: it has no header")
    return parsed


def read_npz(path: Path, *, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz, or those with these names; pickled objects are refused."""
    with _reading_npz(path), path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        members = [name for name in content.files if names is None or name in names]
        arrays = {name: content[name] for name in members}
        # NumPy gives the bytes of a member that does not begin as an array.
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("a member is no array")
        return arrays


def _reading_npz(path: Path) -> contextlib.AbstractContextManager[None]:
    return reading(
        path,
        what="is not a whole .npz file of numbers",
        remedy="if dpcanary wrote it, delete it and run again",
    )


def shape_in_npz(path: Path, name: str) -> tuple[int, ...]:
    """The shape of an array of an .npz, without reading the array."""
    with _reading_npz(path), zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            raise InputError(f"{path} has no array {name!r}")
        with archive.open(f"{name}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            return read(file)[0]


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_new_and_private(path: Path, text: str) -> bool:
    """Writes UTF-8 text that its owner alone may read; False if the file exists already."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    # The file is this process's own now: it is replaced by the whole text or removed.
    os.close(place)
    try:
        write_atomically(path, lambda file: _write_private(file, text))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


def _write_private(file: IO[bytes], text: str) -> None:
    Path(file.name).chmod(0o600)
    file.write(text.encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    with reading(path, what="is not JSON", remedy="delete it and run again"):
        value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise InputError(f"{path} holds no JSON object; delete it and run again")
    return value


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def files_in_folder(folder: Path, *suffixes: str) -> list[Path]:
    """The files below a folder whose names end so, in order; all but hidden ones by default."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.name.lower().endswith(suffixes or "")
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def sha256_of_path(path: Path) -> str:
    """That of a file; of a folder, that of the names and contents of the files in it."""
    if not path.is_dir():
        return sha256_of_file(path)
    named = (f"{sha256_of_file(file)} {file.relative_to(path)}" for file in files_in_folder(path))
    return sha256_of_text("\n".join(named))


def sha256_of_text(text: str) -> str:
    """SHA-256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
