"""Tables as TSV files, written atomically."""

import io
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from dpcanary.core.sealed_tables import read_sealed_table, write_sealed_table
from dpcanary.errors import InputError

_TEXT = ("audit", "sweep", "configuration")


def write_table(path: Path, table: pd.DataFrame, *, origin: str = "") -> None:
    """Writes a table with a header row; numbers have ten digits, missing ones are empty.

    The last column, `checksum`, is of all others; see `sealed`.

    `origin` is what the table is of an experiment, as a column; see `provenance`.
    """
    if origin:
        table = table.assign(origin=origin)
    write_sealed_table(path, table.to_csv(sep="\t", index=False, float_format="%.10g"))


def read_table(path: Path, *, columns: Iterable[str] = ()) -> pd.DataFrame:
    """Reads a table; names and hashes stay text where they read as numbers.

    Raises:
        InputError: if the file is missing, damaged or no table, or lacks one of the columns.
    """
    text = read_sealed_table(path)
    try:
        table = pd.read_csv(
            io.StringIO(text),
            sep="\t",
            dtype=dict.fromkeys(_TEXT, str),
            keep_default_na=False,
            na_values=[""],
        )
    except ValueError as error:
        raise InputError(
            f"{path} is not a table of tab-separated values ({error}); delete it and run again"
        ) from None
    missing = sorted({*columns} - {*table.columns})
    if missing:
        raise InputError(f"{path} has no column {', '.join(missing)}; delete it and run again")
    return table
