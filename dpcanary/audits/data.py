"""The data of an audit: a user's file or arrays, or a known source, and how it is split."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpcanary.datasets.known import KNOWN_SOURCES
from dpcanary.datasets.source import Source
from dpcanary.datasets.sources import load_source
from dpcanary.errors import InputError
from dpcanary.files import read_npz, write_atomically
from dpcanary.records import records_from


@dataclass(frozen=True)
class AuditedData:
    """What is audited, as a config says it.

    Attributes:
        source: the path of a file, or the name of a known source.
        label_column: of a table.
        num_records: private records.
        balanced: whether every class has equally many of them.
        described: in words, for the user.
    """

    source: str
    label_column: str
    num_records: int
    balanced: bool
    described: str

    @property
    def settings(self) -> dict[str, Any]:
        """The dataset in a config."""
        named = {"label_column": self.label_column} if self.label_column != "label" else {}
        return {
            "source": self.source,
            **named,
            "num_records": self.num_records,
            "balanced": self.balanced,
        }


def audited_data(
    source: str, *, label_column: str = "label", num_records: int | None = None
) -> AuditedData:
    """Reads a source and decides how many of its records are private.

    By default half of them are, equally many of each class if there are enough. The others serve
    the adversary and the test.

    Args:
        source: the path of a file, or the name of a known source that needs no download.
        label_column: of a table.
        num_records: private records.

    Raises:
        InputError: if the source is unknown, damaged, or too small.
    """
    if source in KNOWN_SOURCES and not KNOWN_SOURCES[source].is_generated:
        raise InputError(f"source {source} is downloaded: name it in a config (dpcanary init)")
    found = load_source(source, label_column=label_column)
    total, classes = len(found.training), found.num_classes
    if total < 4:
        raise InputError(f"{source} has {total} records; an audit needs at least 4")
    counts = np.bincount(found.training.labels, minlength=classes)
    wanted = num_records or total // 2
    balanced = wanted % classes == 0 and counts.min() >= wanted // classes
    if num_records is None and not balanced:
        even = wanted - wanted % classes
        if even and counts.min() >= even // classes:
            wanted, balanced = even, True
    data = AuditedData(source, label_column, wanted, bool(balanced), "")
    return replace(data, described=_described(found, data))


def _described(found: Source, data: AuditedData) -> str:
    shape = found.training.features.shape[1:]
    size = f"{shape[0]:,} features" if len(shape) == 1 else f"images of shape {shape}"
    each = "equally many of each class" if data.balanced else "drawn from all alike"
    others = len(found.training) - data.num_records
    names = f" ({', '.join(found.class_names)})" if 0 < len(found.class_names) <= 5 else ""
    return (
        f"Data: {data.source}, {len(found.training):,} records x {size}, {found.num_classes}"
        f" classes{names}. {data.num_records:,} of them are private ({each}); the other {others:,}"
        " serve the adversary and the test. Features are standardised by the adversary's records."
    )


def saved_arrays(path: Path, features: Any, labels: Any) -> str:
    """Writes arrays as a file that a config can name; not again if it holds them already.

    Raises:
        InputError: if they are no records.
    """
    records = records_from("features and labels", features, labels)
    arrays: dict[str, Any] = {"features": records.features, "labels": records.labels}
    if path.exists():
        known = read_npz(path)
        if known.keys() == arrays.keys() and all(
            np.array_equal(known[name], array) for name, array in arrays.items()
        ):
            return str(path)
    write_atomically(path, lambda file: np.savez(file, **arrays))
    return str(path)
