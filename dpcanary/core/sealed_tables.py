"""Tables and JSON objects of results, with a checksum: a digit that changes must not be believed.

In a table it is the last column, the same in every row; in an object it is a key. Archives (`.npz`)
have one of their own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpcanary.core.files import read_json, reading, sha256_of_text, write_text
from dpcanary.errors import InputError

CHECKSUM = "checksum"
_COLUMN = f"\t{CHECKSUM}"
_DIGITS = 16


def write_sealed_table(path: Path, text: str) -> None:
    """Writes tab-separated values, with a header, and their checksum. Rows there must be."""
    header, *rows = text.removesuffix("\n").split("\n")
    checksum = _checksum("\n".join([header, *rows]))
    lines = [f"{header}{_COLUMN}", *(f"{row}\t{checksum}" for row in rows)]
    write_text(path, "\n".join([*lines, ""]))


def read_sealed_table(path: Path) -> str:
    """The text of a table, without its checksum, which is compared.

    Raises:
        InputError: if the file is missing or damaged.
    """
    with reading(path, what="is not a table of text", remedy="delete it and run again"):
        text = path.read_bytes().decode()
    header, *rows = text.removesuffix("\n").split("\n")
    parts = [row.rpartition("\t") for row in rows]
    bare = "\n".join([header.removesuffix(_COLUMN), *(row for row, _, _ in parts)])
    is_whole = header.endswith(_COLUMN) and text.endswith("\n")
    if not is_whole or {checksum for _, _, checksum in parts} != {_checksum(bare)}:
        raise _damaged(path)
    return f"{bare}\n"


def sealed(values: Mapping[str, Any]) -> str:
    """A JSON object with its checksum, in one line."""
    return json.dumps({**values, CHECKSUM: _checksum(_in_order(values))})


def unsealed(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """An object that was read from a file, without its checksum, which is compared.

    Raises:
        InputError: if it is damaged.
    """
    bare = {key: value for key, value in values.items() if key != CHECKSUM}
    if values.get(CHECKSUM) != _checksum(_in_order(bare)):
        raise _damaged(path)
    return bare


def write_sealed_object(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object, and its checksum."""
    write_text(path, sealed(values))


def read_sealed_object(path: Path) -> dict[str, Any]:
    """A JSON object, without its checksum, which is compared.

    Raises:
        InputError: if the file is missing or damaged.
    """
    return unsealed(read_json(path), path)


def read_number(path: Path, key: str) -> float:
    """A number of such an object."""
    value = read_sealed_object(path).get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{path} has no number {key}; delete it and run again")
    return float(value)


def _in_order(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def _checksum(text: str) -> str:
    return sha256_of_text(text)[:_DIGITS]


def _damaged(path: Path) -> InputError:
    return InputError(
        f"{path} was damaged or changed since it was written, or is of an older version of"
        " dpcanary: delete it and run again"
    )
