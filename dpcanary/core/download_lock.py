"""A lock file: it records the hash or revision of each first download; later ones must match.

It is for files whose hash is not known beforehand. Committed beside a config, it makes every later
download the same.
"""

import json
import logging
from pathlib import Path

from filelock import FileLock

from dpcanary.core.files import read_json, write_text
from dpcanary.errors import InputError

_LOG = logging.getLogger(__name__)


def check_against_lock(path: Path, *, name: str, value: str) -> None:
    """Compares a value with the recorded one; the first value is recorded and logged.

    Args:
        path: the lock file, JSON; created if missing. Several processes may share it.
        name: of the download.
        value: its hash or revision.

    Raises:
        InputError: if another value is recorded, or the lock file is damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.guard")):
        recorded = read_json(path) if path.exists() else {}
        if name not in recorded:
            recorded[name] = value
            write_text(path, json.dumps(recorded, indent=2, sort_keys=True) + "\n")
            _LOG.warning("%s: first seen, recorded in %s: %s", name, path, value)
        elif recorded[name] != value:
            raise InputError(
                f"{name} is {value}, but {path} records {recorded[name]}: it changed at its"
                f" source or was tampered with; if you trust the new one, remove {name!r} from"
                f" {path} and run again"
            )
