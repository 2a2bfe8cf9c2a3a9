"""Scores of classifiers and regressions, for tables with a secret in one column."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from math import isclose
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from dpcanary.errors import InputError
from dpcanary.secrets.ranking import Candidates

Scores = NDArray[np.float64]
_LEAST = 1e-300  # a probability of 0 has a logarithm, the same for all
_ROUNDING = 1e-3  # relative; half precision rounds by less


class SecretFeature:
    """How well a model predicts a record's label with each candidate in the secret's column.

    The label must not depend on the secret. If it does, as an outcome on a treatment, it tells the
    secret without the model, and the bound is not valid.

    Args:
        predict: from features to probabilities of the classes, such as `predict_proba`, or to
            numbers, such as `predict` of a regression; a data frame or array, as `records` is.
        records: the records that hold the secrets, in their order; see `Secrets.rows`.
        labels: shape (m,); for probabilities the index of the class, else the number.
        column: of the secret: its name, or its index in an array.
        as_type: makes a cell of a candidate, such as `int`.
    """

    def __init__(
        self,
        predict: Callable[[Any], ArrayLike],
        records: pd.DataFrame | NDArray[Any],
        labels: ArrayLike,
        column: str | int,
        *,
        as_type: Callable[[str], Any] = str,
    ) -> None:
        self.predict, self.records, self.column = predict, records, column
        self.labels, self.as_type = np.asarray(labels), as_type
        if self.labels.shape != (len(records),):
            raise InputError(f"there are {len(records)} records and {self.labels.shape} labels")
        check_column(records, column)

    def __call__(self, candidates: Candidates) -> Scores:
        """The label's log-probability, or minus the squared error, for each candidate."""
        cells = [self.as_type(value) for value in candidates.values]
        row = _row(self.records, candidates.index)
        if isinstance(row, pd.DataFrame):
            table: Any = row.iloc[np.zeros(len(cells), int)].reset_index(drop=True)
            table[self.column] = cells
        else:
            table = np.repeat(row, len(cells), axis=0)
            table[:, self.column] = checked_cells(cells, table.dtype)
        predicted = np.asarray(self.predict(table), np.float64)
        label = self.labels[candidates.index]
        if predicted.ndim == 2 and predicted.shape[1] == 1:  # numbers, as a column
            predicted = predicted[:, 0]
        if predicted.ndim == 2:
            if label not in range(predicted.shape[1]):
                raise InputError(
                    f"the label of secret {candidates.index} is {label!s}, and predictions have"
                    f" {predicted.shape[1]} columns: labels are the indices of classes, from 0"
                )
            return np.asarray(np.log(np.maximum(predicted[:, int(label)], _LEAST)), np.float64)
        return np.asarray(-np.square(predicted - label), np.float64)


class SecretLabel:
    """The log-probability of each candidate as the label of the secret's record.

    Args:
        predict: from features to probabilities, shape (records, classes), such as `predict_proba`.
        records: the features of the records whose labels are the secrets, in their order.
        classes: the values that the columns of the probabilities stand for, such as `classes_`.
    """

    def __init__(
        self,
        predict: Callable[[Any], ArrayLike],
        records: pd.DataFrame | NDArray[Any],
        classes: Sequence[object] | NDArray[Any],
    ) -> None:
        self.predict, self.records = predict, records
        self.column_of = {str(name): column for column, name in enumerate(classes)}

    def __call__(self, candidates: Candidates) -> Scores:
        """One number for each candidate; a class that the model does not have is least likely."""
        if self.column_of.keys().isdisjoint(candidates.values):
            raise InputError(
                f"no candidate of secret {candidates.index} is a class: classes are"
                f" {', '.join([*self.column_of][:3])}, candidates"
                f" {', '.join(candidates.values[:3])}; give classes as the secrets are written"
            )
        row = np.asarray(self.predict(_row(self.records, candidates.index)), np.float64)[0]
        chances = [
            row[self.column_of[value]] if value in self.column_of else 0.0
            for value in candidates.values
        ]
        return np.log(np.maximum(chances, _LEAST))


def check_column(table: Any, column: str | int) -> None:
    """Refuses the name of a column that a data frame lacks, or an index that an array lacks.

    Raises:
        InputError: names the column.
    """
    if isinstance(table, pd.DataFrame):
        if column not in table.columns:
            raise InputError(f"the table has no column {column!r}")
        return
    if isinstance(column, str):
        raise InputError(f"the table is an array: give a column's index, not {column!r}")
    shape = np.shape(table)
    if len(shape) != 2 or not -shape[1] <= column < shape[1]:
        raise InputError(f"the table is an array of shape {shape}: it has no column {column}")


def checked_cells(cells: Sequence[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Cells as an array of this type.

    Raises:
        InputError: if one cannot be of this type, a text is cut or a whole number is rounded: the
            array would hold other secrets.
    """
    try:
        array = np.asarray(cells).astype(dtype)
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(
            f"the array is of type {dtype}, which cannot hold the secrets ({error}): make cells of"
            " this type by as_type, or give an array of type object"
        ) from None
    for cell, held in zip(cells, array.tolist(), strict=True):
        if not _is_held(cell, held):
            raise InputError(
                f"the array is of type {dtype}, in which {cell!r} becomes {held!r}: give one that"
                " holds secrets as they are, such as one of type object"
            )
    return array


def _is_held(cell: Any, held: Any) -> bool:
    """Whether an array holds a cell; numbers that are not whole may be rounded."""
    if isinstance(cell, str) and isinstance(held, str):
        return cell == held
    try:
        number, other = Decimal(str(cell)), Decimal(held)
    except (ArithmeticError, TypeError, ValueError):
        return True  # no numbers
    if not number.is_finite() or number == other:
        return True
    return number != number.to_integral_value() and isclose(number, other, rel_tol=_ROUNDING)


def _row(records: Any, index: int) -> Any:
    """A record as a table of one row."""
    if index >= len(records):
        raise InputError(f"there are {len(records)} records, and a secret {index}")
    part = slice(index, index + 1)
    return records.iloc[part] if isinstance(records, pd.DataFrame) else np.asarray(records)[part]
