"""A user's own data: arrays in an .npz file, or a table."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpcanary.core.files import Arrays, read_npz
from dpcanary.data.archives import reading_source
from dpcanary.data.record_source import Source
from dpcanary.data.records import Labels, Records, integer_labels, number_labels, records_from
from dpcanary.errors import InputError

_SAVE_AS_UTF8 = (
    "save the table as UTF-8, as by iconv -f LATIN1 -t UTF-8, or from a spreadsheet as 'CSV UTF-8'"
)
_LOG = logging.getLogger(__name__)


def read_arrays_of(path: Path, *, label_kind: str = "classes") -> Source:
    """Reads an .npz with `features`, `labels`, and optionally `test_features`, `test_labels`."""
    arrays = read_npz(path)
    has_test = "test_features" in arrays or "test_labels" in arrays
    prefixes = ("", "test_") if has_test else ("",)
    parts = [_part(path, arrays, prefix, label_kind) for prefix in prefixes]
    _check_sizes(f"{path}: array 'features'", parts[0].features)
    return Source(str(path), *parts)


def _part(path: Path, arrays: Arrays, prefix: str, label_kind: str) -> Records:
    features, labels = f"{prefix}features", f"{prefix}labels"
    missing = [name for name in (features, labels) if name not in arrays]
    if missing:
        raise InputError(f"{path} has no array {' and no '.join(missing)}")
    numbers = arrays[features]
    if numbers.dtype.kind not in "fiub":
        raise InputError(f"{path}: {features} must be real numbers, not {numbers.dtype}")
    check = number_labels if label_kind == "numbers" else integer_labels
    checked = check(f"{path}: {labels}", arrays[labels])
    return records_from(path, as_numbers(numbers), checked)


def _check_sizes(where: str, numbers: NDArray[Any]) -> None:
    """Refuses numbers that overflow when they are standardised; warns of unlikely ones."""
    if numbers.dtype.kind != "f" or numbers.size == 0:
        return
    largest = max(abs(float(numbers.max())), abs(float(numbers.min())))
    if largest > _LARGEST:
        raise InputError(
            f"{where} has values up to {largest:.3g}, which cannot be standardised; scale or mend"
            " them"
        )
    if largest > _UNLIKELY:
        _LOG.warning(
            "warning: %s has values up to %.3g: if they stand for missing ones, replace them;"
            " beside them, all others are as good as equal",
            where,
            largest,
        )


def as_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Truth values as bytes 0 and 1; numbers as they are."""
    return array.astype(np.uint8) if array.dtype.kind == "b" else array


# Features are standardised in double precision, by their squares. Larger numbers than a time in
# nanoseconds are mostly markers.
_LARGEST, _UNLIKELY = 1e150, 1e19
# Fewer whole numbers that all differ are no sign of identifiers.
_MANY = 20
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read_own_table(
    path: Path, label_column: str = "label", *, label_kind: str = "classes"
) -> Source:
    """Reads a .parquet, .csv or .tsv file; all columns but that of the labels are features.

    Labels are integers from 0, or texts, whose classes are numbered in alphabetical order; or they
    are numbers. A pandas index that was saved with a .parquet file is left out.
    """
    table = _without_index(path, _table(path))
    names = table.column_names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"{path} has several columns {_listed(list(map(repr, twice)))}; rename or drop them"
        )
    if names.count(label_column) != 1 or len(names) == 1:
        raise InputError(
            f"{path} must have one column {label_column!r}, and others; its columns are"
            f" {_listed(names)}; name the column of labels by label_column"
        )
    column = table.column(label_column)
    labels: Labels
    classes: tuple[str, ...] = ()
    if label_kind == "numbers":
        labels = number_labels(str(path), _values(path, label_column, column))
    else:
        labels, classes = _labels(path, label_column, column)
    table = table.drop_columns([label_column])
    columns = zip(table.column_names, table.columns, strict=True)
    values = {name: _values(path, name, column) for name, column in columns}
    for name, column in values.items():
        _check_sizes(f"{path}: column {name!r}", column)
        _warn_of_identifiers(path, name, column)
    features = np.column_stack([*values.values()])
    return Source(str(path), Records(features, labels), class_names=classes)


def _warn_of_identifiers(path: Path, name: str, column: NDArray[Any]) -> None:
    """Whole numbers that differ in every record only name it, or are a feature that may stay."""
    if column.dtype.kind in "iu" and _MANY <= len(column) == len(np.unique(column)):
        _LOG.warning(
            "warning: %s: column %r has another whole number in every record, as identifiers have,"
            " and is used as a feature; drop it if it is none",
            path,
            name,
        )


def _table(path: Path) -> Any:
    with reading_source(path):
        try:
            if path.suffix == ".parquet":
                return pq.read_table(path)
            options = pcsv.ParseOptions(delimiter=_DELIMITERS[path.suffix])
            table = pcsv.read_csv(path, parse_options=options)
            _ = table.column_names  # decodes them
            return table
        except UnicodeDecodeError:
            raise InputError(f"{path}: its header is no UTF-8; {_SAVE_AS_UTF8}") from None
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} is no whole {path.suffix} file: {error}") from None


def _labels(path: Path, name: str, column: Any) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as integers, and the names of their classes if they are texts."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_integer(kind):
        return integer_labels(str(path), _values(path, name, column)), ()
    if pa.types.is_binary(kind):  # what pyarrow cannot read as UTF-8
        raise InputError(f"{path}: the texts in column {name!r} are no UTF-8; {_SAVE_AS_UTF8}")
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(
            f"{path}: labels must be integers from 0, or texts; column {name!r} is {kind}"
        )
    texts = column.to_pylist()
    missing = [row for row, text in enumerate(texts) if not text]
    if missing:
        raise InputError(f"{path}: record {missing[0]} has no label in column {name!r}")
    classes, labels = np.unique(np.array(texts, dtype=str), return_inverse=True)
    return labels.astype(np.int64), tuple(map(str, classes))


def _without_index(path: Path, table: Any) -> Any:
    """Drops the columns of a pandas index: they only number the records."""
    listed = (table.schema.pandas_metadata or {}).get("index_columns", [])
    index = [name for name in table.column_names if name in listed]
    if index:
        _LOG.warning("%s: its index is no feature and is left out: %s", path, _listed(index))
    return table.drop_columns(index)


def _values(path: Path, name: str, column: Any) -> NDArray[Any]:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise InputError(
            f"{path}: column {name!r} is not numeric but {column.type}; drop it, or turn it into"
            " numbers"
        )
    finite = np.isfinite(column.cast(pa.float64(), safe=False).to_numpy())
    if not finite.all():
        raise InputError(
            f"{path}: record {np.argmin(finite)} has no finite value in column {name!r}; fix or"
            " drop it"
        )
    return as_numbers(column.to_numpy())


def _listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
