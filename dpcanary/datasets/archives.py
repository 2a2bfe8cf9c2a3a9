"""Reading of downloaded archives as streams; no member is ever extracted to disk."""

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from dpcanary.errors import InputError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns any error while a file is read into an `InputError` that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read whole ({error}); if it was downloaded, delete it and run again"
        ) from None


def is_tar(path: Path) -> bool:
    """Whether the file's name is that of a tar archive."""
    return path.name.endswith((".tgz", ".tar.gz", ".tar"))


def tar_members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Base name and content of the files of a tar archive, without hidden ones, in its order.

    Each one must be read before the next is asked for.
    """
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None and not name.startswith("."):
                yield name, content


@contextmanager
def open_table(path: Path, *, member: str | None = None) -> Iterator[IO[bytes]]:
    """Opens a plain file, or the member of a tar archive with a base name (or its first file)."""
    with reading(path):
        if not is_tar(path):
            with path.open("rb") as file:
                yield file
            return
        for name, content in tar_members(path):
            if member in (None, name):
                yield content
                return
        wanted = f"member {member}" if member else "file"
        raise InputError(f"{path} has no {wanted}; is it the right archive?")
