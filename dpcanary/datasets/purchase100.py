"""Purchase100: which of 600 products a customer bought, in 100 groups of customers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from dpcanary.datasets.archives import open_table
from dpcanary.datasets.known import KNOWN_SOURCES
from dpcanary.datasets.source import Source
from dpcanary.errors import InputError
from dpcanary.records import Records

NUM_CLASSES = KNOWN_SOURCES["purchase100"].num_classes
(NUM_ITEMS,) = KNOWN_SOURCES["purchase100"].shape
_BLOCK_BYTES = 2**24


def read_purchase100(files: Sequence[Path]) -> Source:
    """Reads bits, as bytes of shape (n, 600); labels 1 to 100 become 0 to 99.

    Args:
        files: `dataset_purchase.tgz`, whose only member is a CSV file, or that CSV file. Each line
            has a label and 600 bits; there is no header.

    Raises:
        InputError: if the file is damaged or a line is wrong; the message names the first such
            line.
    """
    [path] = files
    blocks = list(_blocks(path))
    if not blocks:
        raise InputError(f"{path}: there are no records")
    bits = np.concatenate([block[:, 1:] for block in blocks])
    labels = np.concatenate([block[:, 0] for block in blocks]).astype(np.int64) - 1
    return Source("purchase100", Records(bits, labels))


def _blocks(path: Path) -> Iterator[NDArray[np.uint8]]:
    """Successive lines, shape (n, 601); a block at a time keeps little text in memory."""
    names = [str(column) for column in range(1 + NUM_ITEMS)]
    converted = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.uint8()), null_values=[])
    read = csv.ReadOptions(column_names=names, block_size=_BLOCK_BYTES)
    try:
        with open_table(path) as content:
            for batch in csv.open_csv(content, read_options=read, convert_options=converted):
                block = batch.to_tensor(row_major=True).to_numpy()
                labels, bits = block[:, 0], block[:, 1:]
                if labels.min() < 1 or labels.max() > NUM_CLASSES or bits.max() > 1:
                    raise _wrong_line(path, "a value is out of range")
                yield block
    except pa.ArrowInvalid as error:
        raise _wrong_line(path, str(error)) from None


def _wrong_line(path: Path, reason: str) -> InputError:
    """Reads the file again, slowly, to find the first wrong line."""
    with open_table(path) as content:
        for number, line in enumerate(content, start=1):
            cells = line.decode(errors="replace").strip("\r\n").split(",")
            wrong = _what_is_wrong(cells) if cells != [""] else ""
            if wrong:
                return InputError(f"{path}: line {number}: {wrong}")
    return InputError(f"{path} is not Purchase100: {reason}")


def _what_is_wrong(cells: list[str]) -> str:
    if len(cells) != 1 + NUM_ITEMS:
        return f"{len(cells)} columns in place of a label and {NUM_ITEMS} bits"
    label, *bits = cells
    if not label.isascii() or not label.isdigit() or not 1 <= int(label) <= NUM_CLASSES:
        return f"the label must be 1 to {NUM_CLASSES}, not {label!r}"
    for number, bit in enumerate(bits, start=1):
        if bit not in ("0", "1"):
            return f"bit {number} must be 0 or 1, not {bit!r}"
    return ""
