"""SST-2: sentences, labelled negative or positive, as GLUE's archive or as TSV files."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpcanary.datasets.archives import reading
from dpcanary.datasets.source import Source
from dpcanary.errors import InputError
from dpcanary.records import Records

CLASSES = ("negative", "positive")
_MEMBERS = ("SST-2/train.tsv", "SST-2/dev.tsv")
_HEADERS = (["label", "sentence"], ["content", "label"])  # sorted
_LABELS = ("0", "1")


def read_sst2(files: Sequence[Path]) -> Source:
    """Reads sentences, stripped of surrounding blanks; the dev set is the test part.

    Args:
        files: GLUE's `SST-2.zip`; or TSV files of the training set and optionally the dev set,
            without quoting. A file may have a header that names `sentence` (or `content`) and
            `label`.

    Raises:
        InputError: if a file is damaged or has another form, or a label is neither 0 nor 1.
    """
    if len(files) == 1 and files[0].suffix == ".zip":
        contents = _members(files[0])
    else:
        contents = []
        for path in files:
            with reading(path):
                contents.append((str(path), path.read_bytes()))
    parts = [_part(where, content) for where, content in contents]
    return Source("sst2", *parts, class_names=CLASSES)


def _members(path: Path) -> list[tuple[str, bytes]]:
    with reading(path), zipfile.ZipFile(path) as archive:
        for member in _MEMBERS:
            if member not in archive.namelist():
                raise InputError(f"{path} has no member {member}; is it the right archive?")
        return [(f"{path}: {member}", archive.read(member)) for member in _MEMBERS]


def _part(where: str, content: bytes) -> Records:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text: {error}") from None
    # Not splitlines(): a sentence may contain one of Unicode's other line ends.
    rows = [
        (number, [cell.strip() for cell in line.split("\t")])
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    for number, cells in rows:
        if len(cells) != 2:
            raise InputError(
                f"{where}: line {number} has {len(cells)} columns in place of a sentence and a"
                " label, with a tab between them"
            )
    header = [cell.lower() for cell in rows[0][1]] if rows else []
    if sorted(header) in _HEADERS:
        label_column = header.index("label")
        rows = rows[1:]
    else:  # the column with more labels: an invalid label is then reported as one
        first, second = (sum(cells[column] in _LABELS for _, cells in rows) for column in (0, 1))
        label_column = 0 if first > second else 1
    if not rows:
        raise InputError(f"{where}: there are no records")
    for number, cells in rows:
        if cells[label_column] not in _LABELS:
            raise InputError(
                f"{where}: line {number}: the label must be 0 or 1, not {cells[label_column]!r}"
            )
        if not cells[1 - label_column]:
            raise InputError(f"{where}: line {number}: the sentence is empty")
    texts = [cells[1 - label_column] for _, cells in rows]
    labels = [int(cells[label_column]) for _, cells in rows]
    return Records(np.array(texts, dtype=np.str_), np.array(labels))
