"""A user's table and its preparation: a look at it, and the file that follows from it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcanary.audits.own_audit_data import audited_data, source_named
from dpcanary.core.files import write_text
from dpcanary.data.own_files import holds_table
from dpcanary.data.preparation import Look, Preparation, hashes_of, look_at, read_preparation
from dpcanary.data.record_source import Prepared, Source, is_own
from dpcanary.data.records import records_from
from dpcanary.data.splitting import split_records
from dpcanary.data.table_columns import classes_of, numbers_of
from dpcanary.data.table_files import read_table_as_written
from dpcanary.errors import InputError
from dpcanary.experiment.experiment_config import Settings

_SPLIT = ("num_records", "balanced", "num_auxiliary", "num_test")


def look_at_source(source: str, *, label_column: str, label_kind: str) -> Look | None:
    """Looks at all columns of a user's table; None if the source is not a table."""
    if not _is_table(source):
        return None
    table, has_classes = read_table_as_written(Path(source), label_column), label_kind == "classes"
    return look_at(Path(source), table, label_column=label_column, has_classes=has_classes)


def _is_table(source: str) -> bool:
    return is_own(source_named(source)) and holds_table(Path(source))


@dataclass(frozen=True)
class _Table:
    """A user's table as written, with what is known of it before it is prepared.

    Attributes:
        cells: all columns.
        look: at all rows.
        rows: records whose only feature is their number; classes are numbered as they come.
    """

    cells: pd.DataFrame
    look: Look
    rows: Source

    def preparation(self, **split: Any) -> Preparation:
        """What follows from the adversary's records; see `split_records` for the split."""
        # Which records are the adversary's depends on their labels alone.
        auxiliary = split_records(self.rows, **split, standardised=False).auxiliary
        known = self.cells.iloc[np.sort(auxiliary.features[:, 0])]
        look = look_at(
            self.look.path,
            known,
            label_column=self.look.label_column,
            has_classes=self.rows.training.has_classes,
        )
        if look.is_open:
            raise look.refusal(prepared=True)
        return Preparation(
            classes=look.classes,
            columns={name: judgement.column for name, judgement in look.columns.items()},
            made_from=Prepared(hashes_of(known), None).digest(np.arange(len(known))),
        )


def _table_of(
    path: Path, *, label_column: str, label_kind: str, max_records: int | None = None
) -> _Table:
    """Reads a table; an error says all that a preparation leaves to the user."""
    cells = read_table_as_written(path, label_column)[:max_records]
    has_classes = label_kind == "classes"
    look = look_at(path, cells, label_column=label_column, has_classes=has_classes)
    if look.is_open:
        raise look.refusal(prepared=True)
    column = cells[label_column]
    labels = classes_of(column).factorize()[0] if has_classes else numbers_of(column).to_numpy()
    numbers = np.arange(len(cells))[:, None]
    return _Table(cells, look, Source(str(path), records_from(path, numbers, labels)))


@dataclass(frozen=True)
class PreparedTable:
    """A user's table that was prepared: its records, the text of the file, and a look at it."""

    records: Source
    preparation: str
    look: Look


def prepared_source(
    source: str,
    *,
    label_column: str,
    label_kind: str,
    num_records: int | None,
    seed: int,
    path: Path,
) -> PreparedTable:
    """A user's table, prepared by what its adversary's records tell.

    Args:
        source: its path.
        label_column: in it.
        label_kind: `classes` or `numbers`.
        num_records: private records; see `audited_data`.
        seed: by which records are private or the adversary's.
        path: of the preparation. If it is there, made from the same records, it is used, as it may
            have been edited.

    Raises:
        InputError: if the source is not a table, or if something is in the way that a preparation
            leaves to the user.
    """
    if not _is_table(source):
        raise InputError(f"{source} is not a table, so there is nothing to prepare: drop --prepare")
    table = _table_of(Path(source), label_column=label_column, label_kind=label_kind)
    data = audited_data(table.rows, source=source, num_records=num_records)
    preparation = table.preparation(num_records=data.num_records, balanced=data.balanced, seed=seed)
    text = preparation.written(source)
    if path.exists():
        written = read_preparation(path)
        is_same_table = written.columns.keys() == preparation.columns.keys()
        if is_same_table and written.made_from == preparation.made_from:
            preparation, text = written, path.read_text(encoding="utf-8")
    records = preparation.applied(table.cells, path=Path(source), label_column=label_column)
    return PreparedTable(records, text, table.look)


def write_missing_preparations(settings: Settings, folder: Path) -> None:
    """Makes the preparations that the datasets of a config name, and that are not there.

    Args:
        settings: of the experiment.
        folder: from which its paths are looked up.

    Raises:
        InputError: if a table is missing, or something is in its way that is left to the user.
    """
    for name, dataset in settings.datasets.items():
        if dataset.preparation is None or (folder / dataset.preparation).exists():
            continue
        path = folder / dataset.source
        if not _is_table(str(path)):
            raise InputError(f"datasets.{name}: {path} is not a table; drop the key preparation")
        table = _table_of(
            path,
            label_column=dataset.label_column,
            label_kind=dataset.label_kind,
            max_records=dataset.max_records,
        )
        split = {key: getattr(dataset, key) for key in _SPLIT}
        preparation = table.preparation(**split, seed=settings.seed)
        write_text(folder / dataset.preparation, preparation.written(dataset.source))
        text = f"note: datasets.{name}: {dataset.preparation} was not there, and has been made"
        print(text, file=sys.stderr)
