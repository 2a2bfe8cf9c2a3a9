"""A user's table and its preparation: a look at it, and the file that follows from it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcanary.audits.own_audit_data import audited_data, read_source, source_named
from dpcanary.core.files import write_text
from dpcanary.data.own_files import holds_table
from dpcanary.data.preparation import Look, Preparation, hashes_of, look_at
from dpcanary.data.record_source import Prepared, Source, is_own
from dpcanary.data.records import records_from
from dpcanary.data.sources import check_labels
from dpcanary.data.splitting import split_rows
from dpcanary.data.table_columns import classes_of, judged_label, numbers_of
from dpcanary.data.table_files import TableFile
from dpcanary.errors import InputError
from dpcanary.experiment.experiment_config import Settings

_SPLIT = ("num_records", "balanced", "num_auxiliary", "num_test")


def look_at_source(source: str, *, label_column: str, label_kind: str) -> Look | None:
    """Looks at all columns of a user's table; None if the source is not a table."""
    if not _is_table(source):
        return None
    table, has_classes = TableFile(Path(source), label_column).as_written(), label_kind == "classes"
    return look_at(Path(source), table, label_column=label_column, has_classes=has_classes)


def _is_table(source: str) -> bool:
    return is_own(source_named(source)) and holds_table(Path(source))


@dataclass(frozen=True)
class _Table:
    """A user's table as written, with what a split of its records depends on.

    Attributes:
        cells: all columns.
        label_column: that of the labels.
        rows: records without features; classes are numbered as they come.
    """

    cells: pd.DataFrame
    label_column: str
    rows: Source

    def preparation(self, **split: Any) -> tuple[Preparation, Look]:
        """What follows from a look at the adversary's records; see `split_rows`."""
        cells = self.cells.iloc[np.sort(split_rows(self.rows, **split).auxiliary)]
        look = look_at(
            Path(self.rows.name),
            cells,
            label_column=self.label_column,
            has_classes=self.rows.training.has_classes,
        )
        if look.is_open:
            raise look.refusal(prepared=True)
        preparation = Preparation(
            classes=look.classes,
            columns={name: judgement.column for name, judgement in look.columns.items()},
            made_from=Prepared(hashes_of(cells), None).digest(np.arange(len(cells))),
        )
        return preparation, look


def _table_of(
    path: Path, *, label_column: str, label_kind: str, max_records: int | None = None
) -> _Table:
    """Reads a table; an error says all that a preparation leaves to the user."""
    cells = TableFile(path, label_column).as_written()[:max_records]
    column, has_classes = cells[label_column], label_kind == "classes"
    classes, remarks = judged_label(column, has_classes=has_classes)
    look = Look(path, label_column, {}, classes, tuple(remarks))
    if look.is_open:
        raise look.refusal(prepared=True)
    if has_classes:
        labels, names = classes_of(column).factorize()
    else:
        labels, names = numbers_of(column).to_numpy(), pd.Index([])
    records = records_from(path, np.empty((len(cells), 0)), labels)
    rows = Source(str(path), records, class_names=tuple(map(str, names)))
    return _Table(cells, label_column, rows)


@dataclass(frozen=True)
class PreparedTable:
    """A user's records, of a table that was prepared or as they were.

    Attributes:
        records: of the source.
        preparation: the text of the file that is to be written; None if there is nothing to write.
        look: at the adversary's records; None if the file is there, which may have been edited.
    """

    records: Source
    preparation: str | None
    look: Look | None


def prepared_source(
    source: str,
    *,
    label_column: str,
    label_kind: str,
    num_records: int | None,
    seed: int,
    path: Path | None,
    image_size: int | None = None,
) -> PreparedTable:
    """A user's table, prepared by what its adversary's records tell; or a source as it is.

    Args:
        source: its path.
        label_column: in it.
        label_kind: `classes` or `numbers`.
        num_records: private records; see `audited_data`.
        seed: by which records are private or the adversary's.
        path: of the preparation; None if records are taken as they are. If it is there, it is used,
            as it may have been edited.
        image_size: to which the images of a folder are cut and scaled.

    Raises:
        InputError: if the source is not a table, if something is in the way that a preparation
            leaves to the user, or if the preparation that is there is for other records.
    """
    labels: dict[str, Any] = {"label_column": label_column, "label_kind": label_kind}
    if path is None:
        return PreparedTable(read_source(source, **labels, image_size=image_size), None, None)
    if not _is_table(source):
        raise InputError(f"{source} is not a table, so there is nothing to prepare: drop --prepare")
    if path.exists():
        records = _prepared_before(source, **labels, num_records=num_records, seed=seed, path=path)
        return PreparedTable(records, None, None)
    table = _table_of(Path(source), **labels)
    data = audited_data(table.rows, source=source, num_records=num_records)
    preparation, look = table.preparation(
        num_records=data.num_records, balanced=data.balanced, seed=seed
    )
    records = preparation.applied(table.cells, path=Path(source), label_column=label_column)
    check_labels(records)
    return PreparedTable(records, preparation.written(source), look)


def _prepared_before(
    source: str, *, num_records: int | None, seed: int, path: Path, **labels: Any
) -> Source:
    """A table's records by a preparation that is there, if it is that of the same records."""
    records = read_source(source, **labels, preparation=str(path))
    data = audited_data(records, source=source, num_records=num_records)
    try:
        split_rows(records, num_records=data.num_records, balanced=data.balanced, seed=seed)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return records


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
        preparation, _ = table.preparation(**split, seed=settings.seed)
        write_text(folder / dataset.preparation, preparation.written(dataset.source))
        text = f"note: datasets.{name}: {dataset.preparation} was not there, and has been made"
        print(text, file=sys.stderr)
