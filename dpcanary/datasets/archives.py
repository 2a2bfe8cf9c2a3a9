"""Opening of downloads: members are read from the stream, and nothing is ever extracted."""

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from dpcanary.errors import InputError

_TAR_ENDINGS = (".tgz", ".tar.gz", ".tar")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what goes wrong while a file is read into an `InputError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read whole ({error}); if it was downloaded, delete it and run again"
        ) from None


def is_tar(path: Path) -> bool:
    """Whether the name is a tar archive's."""
    return path.name.endswith(_TAR_ENDINGS)


def tar_members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of a tar archive in its order, each to be read before the next one is asked for.

    Yields:
        Base name and content of each file; hidden files are left out.
    """
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None and not name.startswith("."):
                yield name, content


def zip_members(path: Path, names: tuple[str, ...]) -> list[bytes]:
    """The whole content of some members of a zip archive.

    Raises:
        InputError: if the archive is missing, damaged, or lacks one of them.
    """
    with reading(path), zipfile.ZipFile(path) as archive:
        for name in names:
            if name not in archive.namelist():
                raise InputError(f"{path} has no member {name}; is it the archive meant?")
        return [archive.read(name) for name in names]


@contextmanager
def open_table(path: Path) -> Iterator[IO[bytes]]:
    """A plain file, or the first file of a tar archive.

    Raises:
        InputError: if it is missing or damaged.
    """
    with reading(path):
        if not is_tar(path):
            with path.open("rb") as file:
                yield file
            return
        for _, content in tar_members(path):
            yield content
            return
        raise InputError(f"{path} is an archive without a file")
