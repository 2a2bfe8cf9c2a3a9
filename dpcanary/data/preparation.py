"""How a user's table becomes numbers: from a look at its columns, by a file that people can read.

All that a preparation takes from records (which columns are used, medians, categories, classes) it
takes from those of the adversary, and each record is then encoded by itself. So two datasets that
differ in a record differ in this one alone after preparation, too, if the same records are private.
A balanced split chooses these by the labels of all records, and no split by anything else of them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from pydantic import ValidationError

from dpcanary.core.files import reading
from dpcanary.core.printing import table_lines
from dpcanary.core.setting_fields import ClosedModel, Sha256
from dpcanary.data.record_source import Prepared, Source
from dpcanary.data.records import Records
from dpcanary.data.table_columns import (
    FOR_REGRESSION,
    Column,
    Distinct,
    Judgement,
    Remark,
    classes_of,
    judged,
    judged_label,
    numbers_of,
)
from dpcanary.data.table_files import listed
from dpcanary.errors import InputError

_WIDEST_NAME, _MOST_LINES = 16, 40
_HEADER = ("column", "kind", "what is wrong", "what --prepare does")
_NOTHING = Remark("-", "as it is", blocks=False)
_REMEDY = "mend it, or delete it, and run again: then it is written again"


class Preparation(ClosedModel):
    """What is done with the columns of a table.

    Attributes:
        classes: the labels, in the order of their numbers; none if labels are numbers.
        columns: by name, all but that of the labels.
        made_from: the SHA-256 of the adversary's records that the values come from. Without it,
            they must come from elsewhere, and nothing is compared.
    """

    classes: Distinct = ()
    columns: dict[str, Column]
    made_from: Sha256 | None = None

    def applied(self, table: pd.DataFrame, *, path: Path, label_column: str) -> Source:
        """The records of a table.

        Raises:
            InputError: if its columns are others, or a label is missing or not a known class.
        """
        names = {*table.columns} - {label_column}
        if differing := sorted(names ^ {*self.columns}):
            raise InputError(
                f"{path}: column {listed(differing)}: the table and its preparation differ in it;"
                f" {_REMEDY}"
            )
        parts = [column.encoded(name, table[name]) for name, column in self.columns.items()]
        features = pd.concat(parts, axis="columns")
        if features.empty:
            raise InputError(f"{path}: the preparation uses no column; {_REMEDY}")
        labels = self._labels(table[label_column], f"{path}: column {label_column!r}")
        return Source(
            str(path),
            Records(features.to_numpy(), labels),
            class_names=self.classes,
            prepared=Prepared(hashes_of(table), self.made_from),
        )

    def _labels(self, cells: "pd.Series[Any]", where: str) -> NDArray[Any]:
        if not self.classes:
            labels: NDArray[Any] = numbers_of(cells).to_numpy(np.float32)
            unknown = np.isnan(labels)
        else:
            labels = pd.Index(self.classes).get_indexer(pd.Index(classes_of(cells)))
            unknown = labels < 0
        if unknown.any():
            row = int(np.argmax(unknown))
            raise InputError(
                f"{where}: {unknown.sum():,} records have a label that is missing or that none of"
                f" the adversary's records has, first record {row} ({cells.iloc[row]}): delete"
                " the preparation if it was made from other records; else remove them, or leave the"
                " adversary more records (a balanced split leaves it few of a rare class: balanced:"
                " false); for labels that are measured, --loss squared_error"
            )
        return labels

    def written(self, source: str) -> str:
        """The file, as YAML."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        text = yaml.safe_dump(
            values, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
        )
        by_labels = ", which a balanced split chooses by labels" if self.classes else ""
        return (
            f"# What is done with the columns of {Path(source).name}: numbers and categories are"
            " used, all else is dropped.\n"
            f"# Written by dpcanary, from the adversary's records alone{by_labels}. You may edit"
            f" it.\n{text}"
        )


def read_preparation(path: Path) -> Preparation:
    """Reads a preparation.

    Raises:
        InputError: if the file is missing, or holds something else; it names the key.
    """
    with reading(path, what="is not a preparation", remedy=_REMEDY):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        try:
            return Preparation.model_validate_json(json.dumps(content))
        except ValidationError as error:
            at = error.errors()[0]
            where = ".".join(map(str, at["loc"]))
            raise InputError(f"{path}: {where}: {at['msg']}; {_REMEDY}") from None


@dataclass(frozen=True)
class Look:
    """What stands in a table, judged from some of its rows.

    Attributes:
        path: of the table.
        label_column: in it.
        columns: by name, all others.
        classes: the labels, in the order of their numbers.
        of_labels: what is to be said of them.
    """

    path: Path
    label_column: str
    columns: Mapping[str, Judgement]
    classes: tuple[str, ...]
    of_labels: tuple[Remark, ...]

    @property
    def blocks(self) -> bool:
        """Whether the table cannot be used as it is."""
        return any(remark.blocks for remarks in self._remarks.values() for remark in remarks)

    @property
    def is_open(self) -> bool:
        """Whether a preparation leaves something to the user."""
        return any(remark.is_open for remarks in self._remarks.values() for remark in remarks)

    @property
    def _remarks(self) -> dict[str, tuple[Remark, ...]]:
        of_columns = {name: judgement.remarks for name, judgement in self.columns.items()}
        return {self.label_column: self.of_labels, **of_columns}

    def rows(self, *, whole: bool = False, only_open: bool = False) -> list[dict[str, str]]:
        """What is to be said of columns.

        Args:
            whole: whether something is said of each column.
            only_open: whether it is only what a preparation leaves to the user.
        """
        kinds = {name: judgement.column.kind for name, judgement in self.columns.items()}
        return [
            {
                "column": name,
                "kind": kinds.get(name, "label"),
                "what": remark.what,
                "remedy": f"{'left to you: ' * remark.is_open}{remark.remedy}",
            }
            for name, remarks in self._remarks.items()
            for remark in remarks or (_NOTHING,) * whole
            if remark.is_open or not only_open
        ]

    def lines(self, **chosen: bool) -> list[str]:
        """These rows as a table; of so many columns that few can be read, only the first."""
        rows = self.rows(**chosen)
        cells = [[_short(row.pop("column")), *row.values()] for row in rows[:_MOST_LINES]]
        for above, below in reversed([*pairwise(cells)]):
            if above[:2] == below[:2]:
                below[:2] = "", ""
        left = len(rows) - _MOST_LINES
        return [*table_lines(_HEADER, cells), *[f"and {left} more"] * (left > 0)]

    def refusal(self, *, prepared: bool) -> InputError:
        """The error that says all that is in the way of a table, as it is or `prepared`."""
        text = self._refused
        if prepared:
            text = f"{self.path} cannot be used; mend what --prepare leaves to you."
        return InputError("\n".join([text, "", *self.lines(only_open=prepared)]))

    @property
    def verdict(self) -> str:
        """Whether the table can be used as it is, and if not, what to do."""
        return self._refused if self.blocks else f"{self.path} can be used as it is."

    @property
    def _refused(self) -> str:
        to_users = [remark for part in self._remarks.values() for remark in part if remark.is_open]
        if to_users and all(remark.remedy == FOR_REGRESSION for remark in to_users):
            return f"{self.path} has labels that are no classes: {FOR_REGRESSION}."
        ways = "mend the file"
        if any(FOR_REGRESSION in remark.remedy for remark in to_users):
            ways += f", name another column, or {FOR_REGRESSION}"
        if not to_users:
            ways += ", or let `dpcanary audit --prepare` prepare it"
        return f"{self.path} cannot be used as it is; {ways}."


def look_at(path: Path, table: pd.DataFrame, *, label_column: str, has_classes: bool) -> Look:
    """Looks at all columns of a table, in the rows that it has."""
    names = [str(name) for name in table if name != label_column]
    columns = {name: judged(name, table[name]) for name in names}
    classes, remarks = judged_label(table[label_column], has_classes=has_classes)
    return Look(path, label_column, columns, classes, tuple(remarks))


def hashes_of(table: pd.DataFrame) -> NDArray[np.uint64]:
    """A hash of each record."""
    hashes = pd.util.hash_pandas_object(table.astype("str"), index=False)
    return np.asarray(hashes, dtype=np.uint64)


def _short(name: str) -> str:
    return name if len(name) <= _WIDEST_NAME else f"{name[: _WIDEST_NAME - 3]}..."
