"""SST-2: sentences and whether they are positive, as GLUE's archive or as TSV files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpcanary.datasets.archives import reading, zip_members
from dpcanary.datasets.source import Source, source_of_parts
from dpcanary.errors import InputError
from dpcanary.records import Records

CLASSES = ("negative", "positive")
_MEMBERS = ("SST-2/train.tsv", "SST-2/dev.tsv")
_SENTENCE_NAMES = ("sentence", "content")

Row = tuple[int, list[str]]  # line number from 1, cells


def read_sst2(files: Sequence[Path]) -> Source:
    """Reads sentences, without the blanks around them; the dev set is the test part.

    Args:
        files: GLUE's `SST-2.zip`; or TSV files of the training and perhaps the dev set, quoting
            off: with a header that names `sentence` (or `content`) and `label`, or without one.

    Raises:
        InputError: if a file is damaged or not of that form, or a label is neither 0 nor 1.
    """
    if len(files) == 1 and files[0].suffix == ".zip":
        contents = zip_members(files[0], _MEMBERS)
        names = [f"{files[0]}: {member}" for member in _MEMBERS]
    else:
        contents = [_content(path) for path in files]
        names = [str(path) for path in files]
    parts = [_part(name, content) for name, content in zip(names, contents, strict=True)]
    return source_of_parts("sst2", parts, CLASSES)


def _content(path: Path) -> bytes:
    with reading(path):
        return path.read_bytes()


def _part(where: str, content: bytes) -> Records:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text: {error}") from None
    # Not splitlines(): a sentence may hold one of Unicode's other line ends.
    rows = [
        (number, line.rstrip("\r").split("\t"))
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    for number, cells in rows:
        if len(cells) != 2:
            raise InputError(
                f"{where}: line {number} has {len(cells)} columns in place of a sentence and a"
                " label, with a tab between them"
            )
    column = _label_column_of_header(rows[0][1]) if rows else None
    if column is None:
        return _columns(where, rows, _label_column_of_values(rows))
    return _columns(where, rows[1:], column)


def _label_column_of_header(cells: list[str]) -> int | None:
    """Which column the header names `label`; None where the line is no header."""
    names = [cell.strip().lower() for cell in cells]
    for column in (0, 1):
        if names[column] == "label" and names[1 - column] in _SENTENCE_NAMES:
            return column
    return None


def _label_column_of_values(rows: list[Row]) -> int:
    """The column that has more labels in it: a wrong label is then found as one."""
    first, second = (
        sum(cells[column].strip() in ("0", "1") for _, cells in rows) for column in (0, 1)
    )
    return 0 if first > second else 1


def _columns(where: str, rows: list[Row], label_column: int) -> Records:
    if not rows:
        raise InputError(f"{where}: there are no records")
    for number, cells in rows:
        if cells[label_column].strip() not in ("0", "1"):
            raise InputError(
                f"{where}: line {number}: the label must be 0 or 1, not {cells[label_column]!r}"
            )
        if not cells[1 - label_column].strip():
            raise InputError(f"{where}: line {number}: the sentence is empty")
    texts = [cells[1 - label_column].strip() for _, cells in rows]
    labels = [int(cells[label_column]) for _, cells in rows]
    return Records(np.array(texts, dtype=np.str_), np.array(labels))
