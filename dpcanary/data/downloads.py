"""Gets a file of the catalogue from a local mirror or by https, and checks it."""

import functools
import logging
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, NoReturn
from urllib.parse import urljoin, urlsplit

import pooch
import requests
from requests.exceptions import ChunkedEncodingError
from tqdm import tqdm

from dpcanary.core.download_lock import check_against_lock
from dpcanary.core.files import sha256_of_file, write_atomically
from dpcanary.data.dataset_catalogue import Entry
from dpcanary.errors import InputError

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 3
_CHUNK_BYTES = 2**16
_CONNECTION_ERRORS = (requests.ConnectionError, requests.Timeout, ChunkedEncodingError)
_TIMEOUTS = (10.0, 60.0)  # seconds: to connect; without a byte
_BY_HAND = "the data folder (data_folder in the config, or the environment variable DPCANARY_DATA)"


class _ConnectionLostError(InputError):
    """An error that may not occur at another attempt."""


def fetch(
    entry: Entry,
    *,
    source: str,
    output: Path,
    lock: Path,
    bar: "tqdm[NoReturn]",
    data_folder: Path | None = None,
    schemes: Collection[str] = ("https",),
    wait: float = 2.0,
) -> None:
    """Gets a file, checks its size and hash, and writes it to `output`.

    A local mirror, `<data_folder>/<file>` or `<data_folder>/<source>/<file>`, takes precedence over
    the address; a mirror that fails the checks is an error. After any failure, `output` is as it
    was and no other file is left beside it. A lost connection is tried again, at most twice.

    Args:
        entry: the catalogue's entry of the file.
        source: its name in the catalogue.
        output: where to write it.
        lock: lock file, which records the hash of a file if the catalogue has none.
        bar: progress bar that counts bytes.
        data_folder: folder of local mirrors.
        schemes: URL schemes that may be read, also after a redirection.
        wait: seconds before the second attempt; the third one waits twice as long.

    Raises:
        InputError: if the file cannot be read or written, or its size or hash is wrong.
    """
    _check_scheme(entry.url, schemes)
    _LOG.info("%s: %s. To cite: %s", source, entry.licence, entry.citation)
    mirror = _mirror_of(entry, source, data_folder)
    where = str(mirror or entry.url)
    _LOG.info("%s: %s %s", source, "copying" if mirror else "downloading", where)

    def write(file: IO[bytes]) -> None:
        if mirror is None:
            _download(entry, file, bar, schemes)
        else:
            for chunk in _chunks(mirror):
                file.write(chunk)
                bar.update(len(chunk))
        file.flush()
        _check(Path(file.name), entry, lock, where)

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            write_atomically(output, write)
            return
        except _ConnectionLostError as error:
            if attempt == _ATTEMPTS:
                raise
            what, _, _ = str(error).partition("; ")
            _LOG.warning("attempt %d of %d: %s", attempt, _ATTEMPTS, what)
            time.sleep(wait * 2 ** (attempt - 1))


def _check(written: Path, entry: Entry, lock: Path, where: str) -> None:
    remedy = (
        f"it was damaged, or is not the catalogue's file. Remove it from {_BY_HAND}, or run again;"
        " if that does not help, the file changed at its source: compare it with what its publisher"
        " says before you change the catalogue"
    )
    size = written.stat().st_size
    if entry.bytes is not None and entry.bytes != size:
        raise InputError(f"{where} has {size} bytes, and {entry.bytes} were expected: {remedy}")
    sha256 = sha256_of_file(written)
    if entry.sha256 is None:
        check_against_lock(lock, name=entry.file, value=sha256)
    elif entry.sha256 != sha256:
        raise InputError(f"{where} has sha256 {sha256}, and {entry.sha256} was expected: {remedy}")


def _mirror_of(entry: Entry, source: str, data_folder: Path | None) -> Path | None:
    if data_folder is None:
        return None
    candidates = (data_folder / entry.file, data_folder / source / entry.file)
    return next((path for path in candidates if path.is_file()), None)


def _chunks(path: Path) -> Iterator[bytes]:
    """The content of a file; an error of reading names this file, not the one that is written."""
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _download(
    entry: Entry, file: IO[bytes], bar: "tqdm[NoReturn]", schemes: Collection[str]
) -> None:
    bar.reset()
    read = pooch.HTTPDownloader(
        progressbar=bar,
        chunk_size=_CHUNK_BYTES,
        timeout=_TIMEOUTS,
        # The bytes as stored on the server: a .tgz decompressed on the way has another hash.
        headers={"Accept-Encoding": "identity"},
        hooks={"response": functools.partial(_check_redirection, schemes=schemes)},
    )
    by_hand = f"download {entry.url} yourself and put it into {_BY_HAND} as {entry.file}"
    host = urlsplit(entry.url).hostname
    try:
        read(entry.url, file, None)
    except requests.HTTPError as error:  # its text has the status and the address
        is_passing = error.response is not None and error.response.status_code >= 500
        kind = _ConnectionLostError if is_passing else InputError
        raise kind(f"{host} refuses: {error}; {by_hand}") from None
    except _CONNECTION_ERRORS as error:
        what = f"cannot reach {host}"
        if size := file.tell():
            what = f"{entry.url} broke off after {size} bytes"
        raise _ConnectionLostError(f"{what} ({_reason(error)}); run again, or {by_hand}") from None
    except requests.RequestException as error:
        raise InputError(f"cannot read {entry.url} ({error}); {by_hand}") from None


def _reason(error: Exception) -> str:
    """The cause of a connection's error, without the classes that wrap it."""
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
        raise InputError(f"{url} is not read: only {' and '.join(schemes)} is safe")
