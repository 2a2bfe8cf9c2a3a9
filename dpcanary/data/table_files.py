"""Tables of a user's own: delimited text, which may be compressed, and Parquet files or folders."""

import csv
import gzip
import logging
import re
from collections import Counter
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from dpcanary.core.files import files_in_folder, reading
from dpcanary.errors import InputError

SAVE_AS_UTF8 = (
    "save the table as UTF-8, as by iconv -f LATIN1 -t UTF-8, or from a spreadsheet as 'CSV UTF-8'"
)
PARQUET = ".parquet"
_DELIMITERS = ",;\t|"
_MOST_HEADER_BYTES = 2**20
_WHOLE_FILE = 2**31 - 1
# How pandas and R name the column of an index in a text file.
_INDEX_NAMES = ("", "Unnamed: 0")
# Spreadsheets separate columns so where the decimal point is a comma.
_OF_DECIMAL_COMMAS = ";"
_DECIMAL_COMMA = r"^\s*([+-]?\d*),(\d+)\s*$"
# Numbers with both marks: the first groups thousands, as in 4.996,94 and 4,996.94.
_GROUPED = {
    ".": r"^\s*[+-]?[1-9]\d{0,2}(\.\d{3})+,\d+\s*$",
    ",": r"^\s*[+-]?[1-9]\d{0,2}(,\d{3})+\.\d+\s*$",
}
# Marks that are read as decimal points: values that have one, and those that it may group.
_MARKS = {
    "commas": (_DECIMAL_COMMA, r"^\s*[+-]?[1-9]\d{0,2}(,\d{3})+\s*$"),
    "points": (r"^\s*[+-]?\d+(\.\d+)+\s*$", r"^\s*[+-]?[1-9]\d{0,2}(\.\d{3})+\s*$"),
}
_LOG = logging.getLogger(__name__)


class TableFile:
    """A file or folder of a table; what is read of it is kept.

    Attributes:
        path: of the file or folder.
        label_column: the name of the column of labels.
    """

    def __init__(self, path: Path, label_column: str) -> None:
        """Reads the header of a text file.

        Raises:
            InputError: if it is damaged, or lacks the column of labels, others, or distinct names.
        """
        self.path, self.label_column = path, label_column
        if not _is_parquet(path):
            self._delimiter, self._names = _header(path)
            _check_names(path, self._names, label_column)
            has_index = len(self._names) > 2 and self._names[0] in _INDEX_NAMES
            self._index = self._names[:has_index]
            if has_index:
                _warn_of_index(path, self._index)

    def typed(self) -> Any:
        """The table with the type that fits all values of a column, as a `pyarrow.Table`.

        Raises:
            InputError: if it is damaged.
        """
        if _is_parquet(self.path):
            return self._parquet
        table = _text(self.path, self._delimiter).drop_columns(self._index)
        if self._delimiter != _OF_DECIMAL_COMMAS or pa.string() not in table.schema.types:
            return table
        columns = [
            _with_decimal_commas(texts, column) if pa.types.is_string(column.type) else column
            for texts, column in zip(self._texts.columns, table.columns, strict=True)
        ]
        return pa.table(columns, names=table.column_names)

    def as_written(self) -> pd.DataFrame:
        """The table with cells that do not depend on other rows: those of a text file stay texts.

        Missing ones are NaN.

        Raises:
            InputError: if it is damaged.
        """
        if _is_parquet(self.path):
            table = self._parquet
            return pd.DataFrame(table.to_pandas(ignore_metadata=True, types_mapper=_with_nulls))
        columns = [_with_decimal_points(column, self._delimiter) for column in self._texts.columns]
        return pd.DataFrame(pa.table(columns, names=self._texts.column_names).to_pandas())

    @cached_property
    def _parquet(self) -> Any:
        return _parquet(self.path, self.label_column)

    @cached_property
    def _texts(self) -> Any:
        """The cells of a text file; says where their marks may group thousands."""
        types = dict.fromkeys(self._names, pa.string())
        texts = _text(self.path, self._delimiter, column_types=types, strings_can_be_null=True)
        texts = texts.drop_columns(self._index)
        if self._delimiter == _OF_DECIMAL_COMMAS:
            _warn_of_thousands(self.path, texts)
        return texts


def _with_decimal_commas(texts: Any, typed: Any) -> Any:
    """A column as numbers if all that have a mark have a decimal comma; else as it was `typed`."""
    if pc.any(pc.match_substring(texts, ".")).as_py():
        return typed
    try:
        numbers = pc.replace_substring(pc.utf8_trim_whitespace(texts), ",", ".")
        return numbers.cast(pa.float64())
    except pa.ArrowInvalid:
        return typed


def _warn_of_thousands(path: Path, table: Any) -> None:
    """Says of which columns, all of them texts, the decimal points may group thousands."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        for marks, (decimal, grouping) in _MARKS.items():
            marked = column.filter(pc.match_substring_regex(column, decimal))
            if len(marked) and pc.all(pc.match_substring_regex(marked, grouping)).as_py():
                _LOG.warning(
                    "warning: %s: column %r: %s are read as decimal points; if they group"
                    " thousands, remove them",
                    path,
                    name,
                    marks,
                )


def _with_decimal_points(texts: Any, delimiter: str) -> Any:
    """Texts in which numbers have a decimal point, and no mark that groups thousands."""
    for mark, grouped in _GROUPED.items():
        are_grouped = pc.match_substring_regex(texts, grouped)
        ungrouped = pc.replace_substring(pc.replace_substring(texts, mark, ""), ",", ".")
        texts = pc.if_else(are_grouped, ungrouped, texts)
    if delimiter == _OF_DECIMAL_COMMAS:
        texts = pc.replace_substring_regex(texts, _DECIMAL_COMMA, r"\1.\2")
    return texts


def _with_nulls(kind: Any) -> Any:
    """A type in which integers stay as they are if one of them is missing."""
    return pd.ArrowDtype(kind) if pa.types.is_integer(kind) else None


def _reading(path: Path) -> AbstractContextManager[None]:
    return reading(path, what="is not a whole table", remedy="mend it, or write it again")


def _is_parquet(path: Path) -> bool:
    return path.is_dir() or path.suffix == PARQUET


def _parquet(path: Path, label_column: str) -> Any:
    """The table of a file, or of all files in a folder in the order of their names."""
    with _reading(path):
        files = files_in_folder(path, PARQUET) if path.is_dir() else [path]
        if path.is_dir() and any("=" in str(file.parent.relative_to(path)) for file in files):
            raise InputError(
                f"{path}: names of its folders hold the values of a column; write the table"
                " without partitions"
            )
        tables = [_without_index(path, pq.read_table(file)) for file in files]
        table = pa.concat_tables(tables, promote_options="permissive")
    _check_names(path, table.column_names, label_column)
    return table


def _without_index(path: Path, table: Any) -> Any:
    """Drops the columns of a pandas index: they only number the records."""
    described = (table.schema.pandas_metadata or {}).get("index_columns", [])
    index = [name for name in table.column_names if name in described]
    if index:
        _warn_of_index(path, index)
    return table.drop_columns(index)


def _warn_of_index(path: Path, names: list[str]) -> None:
    text = "warning: %s: its index is not a feature and is left out: %s"
    _LOG.warning(text, path, listed([name or "the first column, without a name" for name in names]))


def _text(path: Path, delimiter: str, **options: Any) -> Any:
    parsing, converting = pcsv.ParseOptions(delimiter=delimiter), pcsv.ConvertOptions(**options)
    with _reading(path):
        try:
            try:
                return pcsv.read_csv(path, parse_options=parsing, convert_options=converting)
            except pa.ArrowInvalid:  # perhaps, later values do not have the type of the first ones
                whole = pcsv.ReadOptions(block_size=_WHOLE_FILE)
                return pcsv.read_csv(path, whole, parsing, converting)
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):
                raise InputError(f"{path}: its texts are not UTF-8; {SAVE_AS_UTF8}") from None
            raise


def _header(path: Path) -> tuple[str, list[str]]:
    """The delimiter of a text file, and the names of its columns."""
    usual = "\t" if ".tsv" in path.suffixes else ","
    with _reading(path):
        stream = gzip.open if path.suffix == ".gz" else open
        with stream(path, "rb") as file:
            # Lines may end with a carriage return alone.
            first = b"".join(file.readline(_MOST_HEADER_BYTES).splitlines()[:1])
    try:
        line = first.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: its header is not UTF-8; {SAVE_AS_UTF8}") from None
    unquoted = re.sub('"[^"]*"', "", line)
    delimiter = max(usual + _DELIMITERS, key=unquoted.count)
    with _reading(path):
        return delimiter, next(csv.reader([line], delimiter=delimiter), [])


def _check_names(path: Path, names: list[str], label_column: str) -> None:
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InputError(
            f"{path} has several columns {listed([*map(repr, repeated)])}; rename or drop them"
        )
    if label_column not in names or len(names) == 1:
        raise InputError(
            f"{path} must have one column {label_column!r}, and others; its columns are"
            f" {listed(names)}; name the column of labels by label_column"
            " (the option --label-column)"
        )


def listed(names: list[str]) -> str:
    """The first names, with commas."""
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
