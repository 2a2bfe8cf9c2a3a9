"""California Housing: block groups of the 1990 census, and whether their homes are expensive."""

import csv
import io
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dpcanary.datasets.archives import is_tar, open_table
from dpcanary.datasets.source import Source
from dpcanary.errors import InputError
from dpcanary.records import Records

CLASSES = ("up to the median", "above the median")
_LOG = logging.getLogger(__name__)
# The archive's order; a file with a header may have another one.
_COLUMNS = (
    "longitude",
    "latitude",
    "housing_median_age",
    "total_rooms",
    "total_bedrooms",
    "population",
    "households",
    "median_income",
    "median_house_value",
)
_MAY_BE_BLANK = "total_bedrooms"


def read_california_housing(files: Sequence[Path]) -> Source:
    """Reads scikit-learn's eight features, in its order, with its averages per household.

    MedInc, HouseAge, AveRooms, AveBedrms, Population, AveOccup, Latitude, Longitude. The label is
    whether the median house value is above its median over all rows. This definition is ours: the
    paper with a binary target does not state one.

    Args:
        files: scikit-learn's `cal_housing.tgz`, or a CSV file with a header. Rows without
            `total_bedrooms` are left out, and their number is logged.

    Raises:
        InputError: if the file is damaged, lacks a column, or a value is no number.
    """
    [path] = files
    rows = list(_rows(path))
    kept = [values for values in rows if values is not None]
    if not kept:
        raise InputError(f"{path}: there are no records")
    if len(kept) < len(rows):
        dropped = len(rows) - len(kept)
        _LOG.warning("%s: %d rows without %s are left out", path, dropped, _MAY_BE_BLANK)
    table = np.array(kept, dtype=np.float64)
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = table.T
    per_household = [part / households for part in (rooms, bedrooms, population)]
    columns = [income, age, *per_household[:2], population, per_household[2], latitude, longitude]
    records = Records(np.column_stack(columns), value > np.median(value))
    return Source("california_housing", records, class_names=CLASSES)


def _rows(path: Path) -> Iterator[list[float] | None]:
    """The nine columns of each line; None for a line that is left out."""
    try:
        with open_table(path, member="cal_housing.data") as content:
            text = content.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}") from None
    lines = csv.reader(io.StringIO(text, newline=""))
    order = range(len(_COLUMNS)) if is_tar(path) else _order(path, next(lines, []))
    for cells in lines:
        if cells:
            yield _values(f"{path}: line {lines.line_num}", cells, order)


def _order(path: Path, header: list[str]) -> list[int]:
    """The index of each column in the header; totalRooms stands for total_rooms."""
    found = [name.strip().lower().replace("_", "") for name in header]
    for name in _COLUMNS:
        if name.replace("_", "") not in found:
            raise InputError(
                f"{path}: the first line names no column {name}; it must be a header with"
                f" {', '.join(_COLUMNS)}"
            )
    return [found.index(name.replace("_", "")) for name in _COLUMNS]


def _values(where: str, cells: list[str], order: Sequence[int]) -> list[float] | None:
    if len(cells) <= max(order):
        raise InputError(f"{where} has {len(cells)} columns; {max(order) + 1} are needed")
    texts = dict(zip(_COLUMNS, (cells[index].strip() for index in order), strict=True))
    if not texts[_MAY_BE_BLANK]:
        return None
    values = {name: _number(where, name, text) for name, text in texts.items()}
    if values["households"] <= 0:
        raise InputError(f"{where}: households must be above 0, for the averages per household")
    return list(values.values())


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {name} must be a number, not {text!r}")
    return value
