"""Getting a file of the catalogue, from a local mirror or by https: checked, or not at all."""

import functools
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urljoin, urlsplit

import pooch
import requests

from dpcanary.datasets.catalogue import Entry
from dpcanary.errors import InputError
from dpcanary.files import write_atomically
from dpcanary.lock import check_against_lock

_LOG = logging.getLogger(__name__)
_CHUNK_BYTES = 2**16
_TIMEOUTS = (10.0, 60.0)  # seconds: to connect; without a byte
_BY_HAND = "the data folder (data_folder in the config, or the environment variable DPCANARY_DATA)"


class Bar(Protocol):
    """A progress bar of tqdm's kind, which counts bytes."""

    total: Any

    def update(self, n: float | None = 1) -> object:
        """Counts more bytes."""

    def reset(self, total: float | None = None) -> object:
        """Starts again."""

    def close(self) -> object:
        """Ends it."""


class _ConnectionLostError(InputError):
    """What another attempt may mend."""


class _HashingFile:
    """A file that keeps the size and hash of what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0
        self.sha256 = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self.size += len(chunk)
        self.sha256.update(chunk)

    def flush(self) -> None:
        """Does nothing: pooch asks for it after every chunk, and it is done once at the end."""


def fetch(
    entry: Entry,
    *,
    source: str,
    output: Path,
    lock: Path,
    bar: Bar,
    data_folder: Path | None = None,
    schemes: Collection[str] = ("https",),
    attempts: int = 3,
    wait: float = 2.0,
) -> None:
    """Gets a file, checks its size and hash, and puts it in its place.

    A local mirror, `<data_folder>/<file>` or `<data_folder>/<source>/<file>`, goes before the
    address; a wrong one is an error. When anything fails, nothing is left at `output` or beside it.

    Args:
        entry: what the catalogue says of the file.
        source: its name in the catalogue.
        output: where to put it.
        lock: lock file, which takes the hash of a file that the catalogue has none for.
        bar: told the bytes done.
        data_folder: where local mirrors are.
        schemes: of addresses that may be read, after a redirection too.
        attempts: how often at most to try when the connection is lost.
        wait: seconds before the second attempt; it doubles from one to the next.

    Raises:
        InputError: if the file cannot be had or written, or is not the one that was meant.
    """
    _check_scheme(entry.url, schemes)
    _LOG.info("%s: %s. To cite: %s", source, entry.licence, entry.citation)
    place = functools.partial(_place, entry=entry, output=output, lock=lock)
    mirror = _mirror_of(entry, source, data_folder)
    if mirror is not None:
        _LOG.info("%s: copying %s", source, mirror)
        place(lambda file: _copy(mirror, file, bar), where=str(mirror))
        return
    _LOG.info("%s: downloading %s", source, entry.url)
    _retry(
        lambda: place(lambda file: _download(entry, file, bar, schemes), where=entry.url),
        attempts=attempts,
        wait=wait,
    )


def _retry(action: Callable[[], None], *, attempts: int, wait: float) -> None:
    for attempt in range(1, attempts):
        try:
            action()
            return
        except _ConnectionLostError as error:
            what, _, _ = str(error).partition("; ")
            _LOG.warning("attempt %d of %d: %s", attempt, attempts, what)
            time.sleep(wait * 2 ** (attempt - 1))
    action()


def _place(
    fill: Callable[[_HashingFile], object], *, entry: Entry, output: Path, lock: Path, where: str
) -> None:
    """Writes the file; it comes to its place only after the checks."""

    def write(file: IO[bytes]) -> None:
        written = _HashingFile(file)
        fill(written)
        _check(written, entry, lock, where)

    write_atomically(output, write)


def _check(written: _HashingFile, entry: Entry, lock: Path, where: str) -> None:
    remedy = (
        f"it was damaged, or is not the file that the catalogue means. Remove it from {_BY_HAND},"
        " or run again; if it stays so it changed at its source: compare it with what its publisher"
        " says before you change the catalogue"
    )
    if entry.bytes is not None and entry.bytes != written.size:
        raise InputError(
            f"{where} has {written.size} bytes, and {entry.bytes} were expected: {remedy}"
        )
    sha256 = written.sha256.hexdigest()
    if entry.sha256 is None:
        check_against_lock(lock, name=entry.file, value=sha256)
    elif entry.sha256 != sha256:
        raise InputError(f"{where} has sha256 {sha256}, and {entry.sha256} was expected: {remedy}")


def _mirror_of(entry: Entry, source: str, data_folder: Path | None) -> Path | None:
    if data_folder is None:
        return None
    candidates = (data_folder / entry.file, data_folder / source / entry.file)
    return next((path for path in candidates if path.is_file()), None)


def _copy(mirror: Path, file: _HashingFile, bar: Bar) -> None:
    for chunk in _chunks(mirror):
        file.write(chunk)
        bar.update(len(chunk))


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _download(entry: Entry, file: _HashingFile, bar: Bar, schemes: Collection[str]) -> None:
    bar.reset()
    read = pooch.HTTPDownloader(
        progressbar=bar,
        chunk_size=_CHUNK_BYTES,
        timeout=_TIMEOUTS,
        # As it is on the server: a decompressed .tgz has another hash.
        headers={"Accept-Encoding": "identity"},
        hooks={"response": functools.partial(_check_redirection, schemes=schemes)},
    )
    by_hand = f"download {entry.url} yourself and put it into {_BY_HAND} as {entry.file}"
    host = urlsplit(entry.url).hostname
    try:
        read(entry.url, file, None)
    except requests.HTTPError as error:  # its text says which, and to what address
        is_passing = error.response is not None and error.response.status_code >= 500
        kind = _ConnectionLostError if is_passing else InputError
        raise kind(f"{host} refuses: {error}; {by_hand}") from None
    except (requests.ConnectionError, requests.Timeout) as error:
        if file.size == 0:
            raise _ConnectionLostError(
                f"cannot reach {host} ({_reason(error)}); {by_hand}"
            ) from None
        raise _interrupted(entry, file, error) from None
    except requests.exceptions.ChunkedEncodingError as error:
        raise _interrupted(entry, file, error) from None
    except requests.RequestException as error:
        raise InputError(f"cannot read {entry.url} ({error}); {by_hand}") from None


def _interrupted(entry: Entry, file: _HashingFile, error: Exception) -> _ConnectionLostError:
    return _ConnectionLostError(
        f"{entry.url} broke off after {file.size} bytes ({_reason(error)}); run again, or download"
        f" it yourself and put it into {_BY_HAND} as {entry.file}"
    )


def _reason(error: Exception) -> str:
    """What the connection's error says in the end, without its wrappings."""
    inner = getattr(error.args[0], "reason", error) if error.args else error
    return str(inner).rpartition("): ")[2]


def _check_redirection(
    response: requests.Response, *, schemes: Collection[str], **_: object
) -> None:
    if response.is_redirect:
        response.close()
        _check_scheme(urljoin(response.url, response.headers["location"]), schemes)


def _check_scheme(url: str, schemes: Collection[str]) -> None:
    if urlsplit(url).scheme not in schemes:
        raise InputError(f"{url} is not read: only {' and '.join(schemes)} is safe on its way")
