"""Reading of downloaded archives as streams; no member is ever extracted to disk."""

import gzip
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dpcanary.core.files import reading
from dpcanary.errors import InputError

_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 2**20


def reading_source(path: Path) -> AbstractContextManager[None]:
    """Turns any error while a file is read into an `InputError` that names the file."""
    return reading(
        path, what="cannot be read whole", remedy="if it was downloaded, delete it and run again"
    )


def is_tar(path: Path) -> bool:
    """Whether the file's name is that of a tar archive."""
    return path.name.endswith((".tgz", ".tar.gz", ".tar"))


def tar_members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Base name and content of the files of a tar archive, without hidden ones, in its order.

    Each one must be read before the next is asked for, and all for the checksum of gzip, which
    stands at the end.
    """
    with ExitStack() as opened:
        stream: Any = opened.enter_context(path.open("rb"))
        if stream.peek(len(_GZIP))[: len(_GZIP)] == _GZIP:
            stream = opened.enter_context(gzip.open(stream))
        archive = opened.enter_context(tarfile.open(fileobj=stream, mode="r|"))
        for member in archive:
            name = PurePosixPath(member.name).name
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None and not name.startswith("."):
                yield name, content
        while stream.read(_BLOCK_BYTES):
            pass


@contextmanager
def open_table(path: Path, *, member: str | None = None) -> Iterator[IO[bytes]]:
    """Opens a plain file, or the member of a tar archive with a base name (or its first file)."""
    with reading_source(path):
        if not is_tar(path):
            with path.open("rb") as file:
                yield file
            return
        is_found = False
        for name, content in tar_members(path):
            if not is_found and member in (None, name):
                is_found = True
                yield content
        if is_found:
            return
        lacking = f"member {member}" if member else "file"
        raise InputError(f"{path} has no {lacking}; is it the right archive?")
