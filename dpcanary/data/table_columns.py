"""What the columns of a table hold, judged from some of its rows, and how each is encoded."""

import re
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from dpcanary.core.setting_fields import ClosedModel

# Beside what pandas takes for missing.
_MISSING_TEXTS = ("", "?", "-", "--", ".")
_TRUTH = {"true": "1", "false": "0"}
_MARKERS = [-99.0, *(sign * (10.0**digits - 1) for digits in range(3, 11) for sign in (-1, 1))]
# Larger numbers than a time in nanoseconds stand for missing ones, and would spoil a scale.
LARGEST_LIKELY = 1e19
# This share of a column of numbers may be other texts, which count as missing.
_MOST_UNREADABLE = 0.1
# Fewer values that all differ are not a sign of identifiers, nor of free text.
MANY_ROWS = 20
_FEW_TEXTS = 10
# Numbers that count the records of a file lie so close; those of a part of them, in the order of
# the file, so close.
_CLOSE, _CLOSE_IN_ORDER = 2, 20
_IDENTIFIER = re.compile(r"(?i:(?:^|[\W_])(?:id|uuid|guid|key|nr))$|(?<=[a-z])I[dD]$")
_MOST_CATEGORIES = 20
_YEAR = "(?:1[89]|20)[0-9]{2}"
_WITH_YEAR = rf"(?<!\d)(?:\d\d?[-/.]{_YEAR}|{_YEAR}[-/.]\d\d?)(?!\d)"
_THREE_GROUPS = r"^\d\d?[-/.]\d\d?[-/.]\d\d(?!\d)"
_DATES_TRIED, _SHARE_OF_DATES = 1000, 0.9
# Labels that are integers but for a point are named as integers.
_WHOLE = r"^(-?(?:0|[1-9]\d*))\.0*$"
# So few records may all be of different classes.
_FEW_RECORDS = 4
# More whole numbers as labels may be counts; more fractions are measured.
MANY_CLASSES, _MANY_VALUES = 10, 20
_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2}([,' \u00a0\u202f]\d{3})+(\.\d+)?\s*"
_OF_MISSING = "the median, and a 0/1 column for missing"
_NOT_FILLED = "kept; remove these rows if missing"
FOR_REGRESSION = "for regression: --loss squared_error"

Kind = Literal["number", "category", "identifier", "date", "text", "constant"]


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    if len({*values}) < len(values):
        raise ValueError("a value is there twice")
    return values


Distinct = Annotated[tuple[str, ...], AfterValidator(_distinct)]


class Column(ClosedModel):
    """What is done with a column: numbers and categories are used, all else is dropped.

    Attributes:
        kind: what the column holds.
        markers: numbers that stand for missing ones.
        fill: the number in place of a missing one.
        categories: each becomes a column of 0 and 1. A record of another one has 0 in all.
        marked: whether a further column says of which records the value is missing.
    """

    kind: Kind
    markers: tuple[float, ...] = ()
    fill: Annotated[float, Field(ge=-LARGEST_LIKELY, le=LARGEST_LIKELY)] = 0.0
    categories: Distinct = ()
    marked: bool = False

    def encoded(self, name: str, cells: "pd.Series[Any]") -> pd.DataFrame:
        """The numbers that stand for a column: each row depends on its own cell alone."""
        columns: dict[str, Any] = {}
        is_missing = None
        if self.kind == "number":
            numbers = numbers_of(cells)
            numbers = numbers.mask(numbers.isin(self.markers))
            is_missing, columns[name] = numbers.isna(), numbers.fillna(self.fill)
        elif self.kind == "category":
            texts = texts_of(cells)
            is_missing = texts.isna()
            columns = {f"{name} = {text}": texts.eq(text) for text in self.categories}
        if self.marked and is_missing is not None:
            columns[f"{name} is missing"] = is_missing
        return pd.DataFrame(columns, index=cells.index).astype(np.float64)


@dataclass(frozen=True)
class Remark:
    """Something about a column.

    Attributes:
        what: in at most 21 characters.
        remedy: what a preparation does about it, or what the user must do.
        blocks: whether the table cannot be used as it is.
        is_open: whether a preparation leaves it to the user.
    """

    what: str
    remedy: str
    blocks: bool = True
    is_open: bool = False


@dataclass(frozen=True)
class Judgement:
    """What a column holds, what is done with it, and what is to be said of it."""

    column: Column
    remarks: tuple[Remark, ...] = ()


def texts_of(cells: "pd.Series[Any]") -> "pd.Series[str]":
    """Cells as texts, in which a whole number has no point; missing ones are NaN."""
    if pd.api.types.is_float_dtype(cells):
        texts = cells.map(_in_digits, na_action="ignore").astype("str")
    else:
        texts = cells.astype("str").str.strip()
    return texts.where(cells.notna() & ~texts.isin(_MISSING_TEXTS))


def _in_digits(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


def numbers_of(cells: "pd.Series[Any]") -> "pd.Series[float]":
    """Cells as numbers; what is missing, not a number or not likely to be one is NaN."""
    if pd.api.types.is_numeric_dtype(cells):  # and truth values
        numbers = pd.Series(cells.to_numpy(np.float64, na_value=np.nan), index=cells.index)
    elif pd.api.types.is_datetime64_any_dtype(cells):
        numbers = pd.Series(np.nan, index=cells.index)
    else:
        numbers = pd.to_numeric(texts_of(cells).str.lower().replace(_TRUTH), errors="coerce")
    return numbers.astype(np.float64).where(lambda values: values.abs() <= LARGEST_LIKELY)


def markers_among(numbers: NDArray[Any]) -> list[float]:
    """Numbers such as -999 and 9999 that lie far from all others.

    Example:
        >>> markers_among(np.array([18, 999, 35, -99, 90, 72]))
        [-99.0, 999.0]
    """
    finite = numbers[np.isfinite(numbers)]
    if not len(finite) or not np.isin([finite.min(), finite.max()], _MARKERS).any():
        return []  # a sort saved
    values = np.unique(finite).astype(np.float64)
    are_nines = np.isin(values, _MARKERS)
    others = values[~are_nines]
    if len(others) < 2:
        return []
    low, high = others[0], others[-1]
    distance = np.maximum(low - values, values - high)
    return [float(value) for value in values[are_nines & (distance > high - low)]]


def _are_identifiers(name: str, numbers: NDArray[Any]) -> bool:
    """Whether numbers that all differ count the records, or have a name of identifiers."""
    are_in_order = bool(np.all(np.diff(numbers.astype(np.float64)) > 0))
    most = len(numbers) * (_CLOSE_IN_ORDER if are_in_order else _CLOSE)
    spread = float(numbers.max()) - float(numbers.min())
    return bool(_IDENTIFIER.search(name)) or spread <= most


def _differ_in_all_rows(numbers: NDArray[Any]) -> bool:
    """Whether many numbers are whole, and all different."""
    are_whole = bool(np.all(np.isfinite(numbers)) and np.all(numbers == np.floor(numbers)))
    return are_whole and MANY_ROWS <= len(numbers) == len(np.unique(numbers))


def judged(name: str, cells: "pd.Series[Any]") -> Judgement:
    """Judges a column by these rows of it."""
    numbers = numbers_of(cells)
    values = cells if pd.api.types.is_numeric_dtype(cells) else texts_of(cells)
    is_missing = values.isna()
    unreadable = numbers.isna() & ~is_missing
    if values.nunique() < (1 if is_missing.any() else 2) or is_missing.all():
        what = "empty" if is_missing.all() else "the same in all rows"
        return Judgement(Column(kind="constant"), (Remark(what, "dropped"),))
    if unreadable.sum() <= _MOST_UNREADABLE * (~is_missing).sum():
        return _number(name, numbers, is_missing, unreadable)
    texts = texts_of(cells)
    if _are_dates(cells, texts):
        return Judgement(Column(kind="date"), (Remark("dates", "dropped"),))
    num_texts, counts = texts.nunique(), texts.value_counts()
    if num_texts > max(_FEW_TEXTS, len(cells) / 2):
        if (numbers.notna() | is_missing | texts.str.fullmatch(_THOUSANDS, na=False)).all():
            remark = Remark("thousands are grouped", "write plain numbers", is_open=True)
            return Judgement(Column(kind="text"), (remark,))
        is_identifier = num_texts == len(cells) >= MANY_ROWS and not texts.str.contains(r"\s").any()
        what = "differs in all rows" if is_identifier else f"{num_texts:,} texts"
        kind: Kind = "identifier" if is_identifier else "text"
        return Judgement(Column(kind=kind), (Remark(what, "dropped"),))
    # The most frequent ones; of equally frequent ones the first in the alphabet.
    kept = sorted(
        counts.sort_index().sort_values(ascending=False, kind="stable").index[:_MOST_CATEGORIES]
    )
    column = Column(kind="category", categories=tuple(kept), marked=bool(is_missing.any()))
    each = f"the {len(kept)} most frequent" if len(kept) < num_texts else "each"
    remarks = [Remark(f"{num_texts} categories", f"a 0/1 column for {each}")]
    return Judgement(column, (*remarks, *_missing(is_missing, "a 0/1 column for missing")))


def remarks_on_numbers(name: str, numbers: NDArray[Any]) -> list[Remark]:
    """What is to be said of numbers that can be used as they are."""
    return _looked_at(name, numbers)[2]


def _looked_at(name: str, numbers: NDArray[Any]) -> tuple[bool, list[float], list[Remark]]:
    """Whether numbers are identifiers, which stand for missing ones, and what is to be said."""
    differ = _differ_in_all_rows(numbers)
    if differ and _are_identifiers(name, numbers):
        return True, [], [Remark("differs in all rows", "dropped", blocks=False)]
    markers = markers_among(numbers)
    remarks = [
        Remark(f"{marker:.0f} in {np.sum(numbers == marker):,} rows", _OF_MISSING, blocks=False)
        for marker in markers
    ]
    if differ:
        remedy = "kept; drop it if it is an identifier"
        remarks.append(Remark("differs in all rows", remedy, blocks=False))
    return False, markers, remarks


def _number(name: str, numbers: Any, is_missing: Any, unreadable: Any) -> Judgement:
    are_identifiers, markers, remarks = _looked_at(name, numbers.to_numpy())
    if are_identifiers:
        return Judgement(Column(kind="identifier"), tuple(remarks))
    if unreadable.any():
        remarks.append(Remark(f"{unreadable.sum():,} not numbers", "missing"))
    measured = numbers.mask(numbers.isin(markers))
    remarks += _missing(is_missing, _OF_MISSING)
    column = Column(
        kind="number",
        markers=tuple(markers),
        fill=float(measured.median()),
        marked=bool(measured.isna().any()),
    )
    return Judgement(column, tuple(remarks))


def _missing(is_missing: Any, remedy: str) -> list[Remark]:
    return [Remark(f"{is_missing.sum():,} missing", remedy)] if is_missing.any() else []


def _are_dates(cells: "pd.Series[Any]", texts: "pd.Series[str]") -> bool:
    if pd.api.types.is_datetime64_any_dtype(cells):
        return True
    distinct = texts.dropna().drop_duplicates()
    tried = distinct.head(_DATES_TRIED)
    # Few texts without a year may be scores, bands or odds: 1-3 could be the first of March.
    shapes = _WITH_YEAR if len(distinct) <= _MOST_CATEGORIES else f"{_WITH_YEAR}|{_THREE_GROUPS}"
    if not tried.str.contains(shapes).all():
        return False
    with warnings.catch_warnings():  # of a format that is not recognised
        warnings.simplefilter("ignore", UserWarning)
        dates = [pd.to_datetime(tried, errors="coerce", dayfirst=first) for first in (False, True)]
    return max(parsed.notna().mean() for parsed in dates) >= _SHARE_OF_DATES


def classes_of(cells: "pd.Series[Any]") -> "pd.Series[str]":
    """The names of the classes that labels stand for: 1.0 is class 1; 01 and 1 are two classes."""
    return texts_of(cells).str.replace(_WHOLE, r"\1", regex=True)


def judged_label(
    cells: "pd.Series[Any]", *, has_classes: bool
) -> tuple[tuple[str, ...], list[Remark]]:
    """The classes in these rows, in the order of their numbers, and what is to be said of labels.

    Numbers come in their order, texts in that of the alphabet. There are no classes if labels are
    numbers to be predicted.
    """
    names, remarks = classes_of(cells), []
    if num_missing := names.isna().sum():
        remarks.append(Remark(f"{num_missing:,} missing", "remove these rows", is_open=True))
    if not has_classes:
        if num_unreadable := numbers_of(cells).isna().sum() - num_missing:
            what = f"{num_unreadable:,} not numbers"
            remarks.append(Remark(what, "mend or remove these rows", is_open=True))
        return (), [*remarks, *remarks_on_label(numbers_of(cells).to_numpy(), has_classes=False)]
    distinct = names.dropna().drop_duplicates()
    numbers = pd.to_numeric(distinct, errors="coerce")
    classes = tuple(pd.DataFrame({"n": numbers, "t": distinct}).sort_values(["n", "t"])["t"])
    are_numbers, are_whole = numbers.notna().all(), (numbers % 1 == 0).all()
    if len(classes) < 2:
        remarks.append(Remark("the same in all rows", "name another column", is_open=True))
    elif are_numbers and not are_whole and len(classes) > _MANY_VALUES:
        remarks.append(Remark(f"{len(classes):,} numbers", FOR_REGRESSION, is_open=True))
    elif len(classes) == len(cells) > _FEW_RECORDS:
        remedy = "name another column" + f"; or, {FOR_REGRESSION}" * bool(are_numbers)
        remarks.append(Remark("differs in all rows", remedy, is_open=True))
    elif are_numbers and are_amounts(len(classes), len(cells)):
        remarks.append(Remark(f"{len(classes):,} numbers", FOR_REGRESSION, is_open=True))
    elif are_numbers:
        if classes != tuple(map(str, range(len(classes)))):
            remedy = f"numbered from 0 to {len(classes) - 1}"
            remedy += "" if are_whole else f"; or, {FOR_REGRESSION}"
            remarks.append(Remark("not 0, 1, 2, ...", remedy))
        remarks += remarks_on_label(numbers_of(cells).dropna().to_numpy(), has_classes=True)
    return classes, remarks


def are_amounts(num_values: int, num_rows: int) -> bool:
    """Whether so many different numbers as labels are amounts, and no classes."""
    return num_values > max(_MANY_VALUES, num_rows / 2)


def remarks_on_label(labels: NDArray[Any], *, has_classes: bool) -> list[Remark]:
    """What is to be said of numbers that can be labels."""
    if not has_classes:
        return [
            Remark(f"{marker:.0f} in {np.sum(labels == marker):,} rows", _NOT_FILLED, blocks=False)
            for marker in markers_among(labels)
        ]
    distinct = np.unique(labels)
    if len(distinct) <= MANY_CLASSES or np.any(distinct != np.floor(distinct)):
        return []
    if are_amounts(len(distinct), len(labels)):
        return [Remark(f"{len(distinct):,} numbers", FOR_REGRESSION, blocks=False)]
    remedy = f"classes; if they are counts or amounts, {FOR_REGRESSION}"
    return [Remark(f"{len(distinct):,} whole numbers", remedy, blocks=False)]
