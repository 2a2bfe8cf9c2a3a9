"""A user's own data: arrays in an .npz file, a table, or a folder of images."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpcanary.core.files import Arrays, files_in_folder, read_npz
from dpcanary.data.image_folders import read_image_folder
from dpcanary.data.preparation import look_at, read_preparation
from dpcanary.data.record_source import OWN_SUFFIXES, Source
from dpcanary.data.records import Records, integer_labels, number_labels, records_from
from dpcanary.data.table_columns import (
    LARGEST_LIKELY,
    remarks_on_label,
    remarks_on_numbers,
    texts_of,
)
from dpcanary.data.table_files import PARQUET, SAVE_AS_UTF8, TableFile, listed
from dpcanary.errors import InputError

# What other libraries call the arrays.
_NAMES = {
    "X": "features", "x": "features", "X_train": "features", "x_train": "features",
    "y": "labels", "y_train": "labels",
    "X_test": "test_features", "x_test": "test_features", "y_test": "test_labels",
}  # fmt: skip
# Features are standardised in double precision, by their squares.
_LARGEST = 1e150
_LOG = logging.getLogger(__name__)
# What makes labels of each kind those that a training takes.
_FOR_LABELS = {
    "classes": "leave out the loss of a regression (in a config also label_kind: numbers)",
    "numbers": "give --loss squared_error (in a config also label_kind: numbers)",
}


def read_own(
    files: Sequence[Path],
    *,
    label_column: str = "label",
    label_kind: str = "classes",
    image_size: int | None = None,
    max_records: int | None = None,
) -> Source:
    """Reads a user's own file or folder; then, if there is another one, its preparation.

    Of a table that is prepared, only the first `max_records` are looked at.

    Raises:
        InputError: if one is missing or damaged, or cannot be used; it says all that is in the way.
    """
    path, *preparations = files
    is_table = holds_table(path)
    if preparations and not is_table:
        raise InputError(f"{path} is not a table: only a table has a preparation; drop the key")
    if label_column != "label" and not is_table:
        raise InputError(f"{path} is not a table: label_column is for one; drop the key")
    if image_size is not None and not path.is_dir():
        raise InputError(f"{path} is not a folder of images: image_size is for one; drop the key")
    if preparations:
        preparation = read_preparation(preparations[0])
        prepared_kind = "classes" if preparation.classes else "numbers"
        if prepared_kind != label_kind:
            raise InputError(
                f"{preparations[0]} is for labels that are {prepared_kind}, but they are taken as"
                f" {label_kind}: {_FOR_LABELS[prepared_kind]}; or delete it for {label_kind}, and"
                " run again: an audit writes it again"
            )
        table = TableFile(path, label_column).as_written()[:max_records]
        return preparation.applied(table, path=path, label_column=label_column)
    if is_table:
        return _read_plain_table(path, label_column, label_kind=label_kind)
    if path.is_dir():
        if label_kind == "numbers":
            raise InputError(f"{path}: the labels of images in folders are classes, not numbers")
        return read_image_folder(path, size=image_size)
    return read_arrays_of(path, label_kind=label_kind)


def holds_table(path: Path) -> bool:
    """Whether a user's own file or folder is a table."""
    if path.is_dir():
        return bool(files_in_folder(path, PARQUET))
    return path.name.endswith(OWN_SUFFIXES) and path.suffix != ".npz"


def read_arrays_of(path: Path, *, label_kind: str = "classes") -> Source:
    """Reads an .npz with `features`, `labels`, and optionally `test_features`, `test_labels`.

    They may be called `X` and `y` as well, or `X_train`, `y_train`, `X_test` and `y_test`. Array
    `record_names` has the names of the training records, if they have any.
    """
    arrays = read_npz(path)
    arrays |= {
        _NAMES[name]: arrays[name]
        for name in _NAMES
        if name in arrays and _NAMES[name] not in arrays
    }
    has_test = "test_features" in arrays or "test_labels" in arrays
    prefixes = ("", "test_") if has_test else ("",)
    parts = [_part(path, arrays, prefix, label_kind) for prefix in prefixes]
    for prefix, part in zip(prefixes, parts, strict=True):
        _check_sizes(f"{path}: array '{prefix}features'", part.features)
    names = tuple(map(str, arrays.get("record_names", ())))
    return Source(str(path), *parts, names=names)


def _part(path: Path, arrays: Arrays, prefix: str, label_kind: str) -> Records:
    features, labels = f"{prefix}features", f"{prefix}labels"
    missing = [name for name in (features, labels) if name not in arrays]
    if missing:
        raise InputError(f"{path} has no array {' and no '.join(missing)}")
    numbers = arrays[features]
    if numbers.dtype.kind not in "fiub":
        raise InputError(f"{path}: {features} must be real numbers, not {numbers.dtype}")
    check = number_labels if label_kind == "numbers" else class_labels
    checked = check(f"{path}: {labels}", arrays[labels])
    return records_from(path, as_numbers(numbers), checked)


def class_labels(where: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Labels that are classes, in whichever type they are stored: 1.0 and true are class 1."""
    are_whole = labels.dtype.kind == "f" and np.array_equal(labels, np.floor(labels))
    return integer_labels(where, labels.astype(np.int64) if are_whole else labels)


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
    if largest > LARGEST_LIKELY:
        _LOG.warning(
            "warning: %s has values up to %.3g: if they stand for missing ones, replace them;"
            " beside them, all others are as good as equal",
            where,
            largest,
        )


def as_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Truth values as bytes 0 and 1; numbers as they are."""
    return array.astype(np.uint8) if array.dtype.kind == "b" else array


def _read_plain_table(path: Path, label_column: str, *, label_kind: str) -> Source:
    """Reads a table all of whose columns but that of the labels are features.

    Labels are integers from 0, or texts, whose classes are numbered in alphabetical order; or they
    are numbers.
    """
    file = TableFile(path, label_column)
    table = file.typed()
    columns = dict(zip(table.column_names, table.columns, strict=True))
    columns = {name: _decoded(column) for name, column in columns.items()}
    for name, column in columns.items():
        if pa.types.is_binary(column.type):  # of a text file, what pyarrow cannot read as UTF-8
            is_binary = path.is_dir() or path.suffix == PARQUET
            wrong = (
                f"column {name!r} holds bytes; drop it, or make numbers or texts of it"
                if is_binary
                else f"the texts in column {name!r} are not UTF-8; {SAVE_AS_UTF8}"
            )
            raise InputError(f"{path}: {wrong}")
    named = _labels(path, columns.pop(label_column), label_kind)
    converted = {name: _values(column) for name, column in columns.items()}
    values = {name: column for name, column in converted.items() if column is not None}
    if named is None or len(values) < len(converted):
        has_classes = label_kind == "classes"
        look = look_at(path, file.as_written(), label_column=label_column, has_classes=has_classes)
        mixed = [name for name, column in converted.items() if column is None]
        if mixed and not look.blocks:
            raise InputError(
                f"{path} cannot be used as it is: cells have decimal points and others decimal"
                f" commas in {listed(mixed)}; write points in all, or audit it with --prepare,"
                " which reads each cell alone"
            )
        raise look.refusal(prepared=False)
    labels, classes = named
    for name, column in values.items():
        _check_sizes(f"{path}: column {name!r}", column)
        for remark in remarks_on_numbers(name, column):
            text = f"{remark.what}, used as it is (--prepare: {remark.remedy})"
            _LOG.warning("warning: %s: column %r: %s", path, name, text)
    if not classes:
        for remark in remarks_on_label(labels, has_classes=label_kind == "classes"):
            text = f"{remark.what}: {remark.remedy}"
            _LOG.warning("warning: %s: column %r: %s", path, label_column, text)
    return Source(
        str(path), Records(np.column_stack([*values.values()]), labels), class_names=classes
    )


def _labels(
    path: Path, column: Any, label_kind: str
) -> tuple[NDArray[Any], tuple[str, ...]] | None:
    """Labels, and the names of their classes if they are texts; None if some cannot be used."""
    numbers = _values(column)
    if numbers is not None:
        if label_kind == "numbers":
            return number_labels(str(path), numbers), ()
        try:
            return class_labels(str(path), numbers), ()
        except InputError:
            return None
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if label_kind == "numbers" or not is_text:
        return None
    texts = texts_of(column.to_pandas())
    if texts.isna().any():
        return None
    classes, labels = np.unique(texts.to_numpy(str), return_inverse=True)
    return labels.astype(np.int64), tuple(map(str, classes))


def _decoded(column: Any) -> Any:
    """A column without a dictionary, and with binary fractions in place of decimal ones."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column


def _values(column: Any) -> NDArray[Any] | None:
    """A column's numbers; None if it is not numeric, or if one is missing or infinite."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if not any(is_kind(column.type) for is_kind in kinds) or column.null_count:
        return None
    values = as_numbers(column.to_numpy())
    return values if np.isfinite(values).all() else None
