"""A user's own data: arrays in an .npz file, or a table in a .parquet file."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpcanary.datasets.archives import reading
from dpcanary.datasets.source import Source, source_of_parts
from dpcanary.errors import InputError
from dpcanary.files import Arrays, read_npz
from dpcanary.records import Records, integer_labels, records_from

_LOG = logging.getLogger(__name__)


def read_arrays_of(path: Path) -> Source:
    """Reads an .npz file with `features`, `labels` and perhaps `test_features`, `test_labels`.

    Raises:
        InputError: if the file is damaged, lacks an array, or its numbers are wrong.
    """
    arrays = read_npz(path)
    parts = [_part(path, arrays, "features", "labels")]
    if not arrays.keys().isdisjoint(("test_features", "test_labels")):
        parts.append(_part(path, arrays, "test_features", "test_labels"))
    return source_of_parts(str(path), parts)


def read_parquet(path: Path) -> Source:
    """Reads a table with an integer column `label`; every other column is a feature.

    An index that pandas wrote along is left out.

    Raises:
        InputError: if the file is damaged, a column is not numeric, or a value is missing.
    """
    table = _table(path)
    index = _index_columns(path, table.schema)
    columns = zip(table.column_names, table.columns, strict=True)
    named = [(name, column) for name, column in columns if name not in index]
    label = [column for name, column in named if name == "label"]
    if len(label) != 1 or len(named) == 1:
        raise InputError(
            f"{path} must have one column 'label', and others; its columns are"
            f" {_listed([name for name, _ in named])}"
        )
    if not pa.types.is_integer(label[0].type):
        raise InputError(
            f"{path}: labels must be integers from 0; column 'label' is {label[0].type}"
        )
    labels = integer_labels(str(path), _values(path, "label", label[0]))
    features = [_values(path, name, column) for name, column in named if name != "label"]
    records = np.empty((len(labels), len(features)), np.result_type(*features))
    for place, values in enumerate(features):
        records[:, place] = values
    return Source(str(path), Records(records, labels))


def _part(path: Path, arrays: Arrays, features: str, labels: str) -> Records:
    missing = [name for name in (features, labels) if name not in arrays]
    if missing:
        raise InputError(f"{path} has no array {' and no '.join(missing)}")
    numbers = _numbers(f"{path}: {features}", arrays[features])
    return records_from(path, numbers, integer_labels(f"{path}: {labels}", arrays[labels]))


def _table(path: Path) -> Any:
    with reading(path):
        try:
            return pq.read_table(path)
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} is no whole .parquet file: {error}") from None


def _numbers(where: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    if array.dtype.kind not in "fiu":
        raise InputError(f"{where} must be real numbers, not {array.dtype}")
    return array


def _index_columns(path: Path, schema: Any) -> set[str]:
    """Columns that hold the index of a pandas table: they number the records."""
    listed = (schema.pandas_metadata or {}).get("index_columns", [])
    found = {name for name in listed if isinstance(name, str)}
    if found:
        _LOG.warning("%s: its index is no feature and left out: %s", path, _listed(sorted(found)))
    return found


def _values(path: Path, name: str, column: Any) -> NDArray[Any]:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise InputError(
            f"{path}: column {name!r} is not numeric but {column.type}; drop it, or turn it into"
            " numbers"
        )
    if column.null_count:
        record = int(np.argmax(column.is_null().to_numpy()))
        raise InputError(
            f"{path}: record {record} has no value in column {name!r}; mend or drop it"
        )
    values = _numbers(f"{path}: column {name!r}", column.to_numpy())
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        record = int(np.argmin(np.isfinite(values)))
        raise InputError(
            f"{path}: record {record} has a feature that is NaN or infinite, in column {name!r};"
            " mend or drop it"
        )
    return values


def _listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
