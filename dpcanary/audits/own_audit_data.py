"""The data of an audit: a user's file or arrays, or a known source, and how it is split."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpcanary.core.files import read_npz, write_atomically
from dpcanary.data.own_files import class_labels
from dpcanary.data.record_source import KNOWN_SOURCES, Source
from dpcanary.data.records import checked_array, number_labels, records_from
from dpcanary.data.sources import check_labels, load_source
from dpcanary.errors import InputError
from dpcanary.training.training_settings import Loss


@dataclass(frozen=True)
class AuditedData:
    """What is audited, as a config says it.

    Attributes:
        source: the path of a file, or the name of a known source.
        label_column: of a table.
        label_kind: `classes`, or `numbers` for loss `squared_error`.
        num_records: private records.
        balanced: whether every class has equally many of them.
        standardised: whether features are standardised.
        preparation: the path of a table's preparation, if it has one.
        image_size: to which the images of a folder are cut and scaled, if they are.
        described: in words, for the user.
    """

    source: str
    label_column: str
    label_kind: str
    num_records: int
    balanced: bool
    standardised: bool
    preparation: str | None
    image_size: int | None
    described: str

    @property
    def settings(self) -> dict[str, Any]:
        """The dataset in a config."""
        named: dict[str, Any] = (
            {"label_column": self.label_column} if self.label_column != "label" else {}
        )
        if self.label_kind != "classes":
            named["label_kind"] = self.label_kind
        optional = {"preparation": self.preparation, "image_size": self.image_size}
        named |= {key: value for key, value in optional.items() if value is not None}
        kept = {} if self.standardised else {"standardised": False}
        return {
            "source": self.source,
            **named,
            "num_records": self.num_records,
            "balanced": self.balanced,
            **kept,
        }


def label_kind_of(loss: Loss | str) -> str:
    """What the labels are that a model with this loss is trained on: `classes` or `numbers`."""
    return "classes" if Loss(loss).is_of_classes else "numbers"


def read_source(
    source: str,
    *,
    label_column: str = "label",
    label_kind: str = "classes",
    preparation: str | None = None,
    image_size: int | None = None,
) -> Source:
    """The records of a user's file or folder, or of a known source that needs no download.

    Args:
        source: the path of the file or folder, or the name of the source.
        label_column: of a table.
        label_kind: `classes` or `numbers`.
        preparation: the path of the preparation of a table.
        image_size: to which the images of a folder are cut and scaled.

    Raises:
        InputError: if the source is unknown or damaged.
    """
    if source in KNOWN_SOURCES and not KNOWN_SOURCES[source].is_generated:
        raise InputError(f"source {source} is downloaded: name it in a config (dpcanary init)")
    return load_source(
        source_named(source),
        label_column=label_column,
        label_kind=label_kind,
        preparation=preparation,
        image_size=image_size,
    )


def source_named(source: str) -> str:
    """A source as a config names it: a folder ends with a slash."""
    is_folder = source not in KNOWN_SOURCES and Path(source).is_dir()
    return f"{source.rstrip('/')}/" if is_folder else source


def audited_data(
    records: Source,
    *,
    source: str,
    label_column: str = "label",
    num_records: int | None = None,
    standardised: bool = True,
    preparation: str | None = None,
    image_size: int | None = None,
) -> AuditedData:
    """Decides how many of a source's records are private.

    By default half of them are. They are equally many of each class if the others keep at least
    half as many of it: adversary and test need records of a rare class, too. The others serve the
    adversary, and the test if the source has no test part.

    Args:
        records: those of the source.
        source: the name of the source in a config.
        label_column: of a table.
        num_records: private records.
        standardised: whether features are standardised; not for ids of tokens.
        preparation: the path of a table's preparation.
        image_size: to which the images of a folder are cut and scaled.

    Raises:
        InputError: if there are too few records.
    """
    total, classes = len(records.training), records.num_classes
    if total < 4:
        raise InputError(f"{source} has {total} records; an audit needs at least 4")
    if num_records is not None and not 1 <= num_records <= total - 2:
        raise InputError(
            f"num_records is {num_records}; of the {total} records of {source}, at least 1 must be"
            " private and 2 others, for the adversary and the test"
        )
    num_private, has_classes = num_records or total // 2, records.training.has_classes
    counts = np.bincount(records.training.labels, minlength=classes) if has_classes else np.zeros(1)
    even = num_private - num_private % classes if num_records is None else num_private
    balanced = has_classes and even > 0 and even % classes == 0
    balanced = balanced and 2 * counts.min() >= 3 * (even // classes)
    kind = "classes" if has_classes else "numbers"
    data = AuditedData(
        source_named(source),
        label_column,
        kind,
        even if balanced else num_private,
        bool(balanced),
        standardised,
        preparation,
        image_size,
        described="",
    )
    return replace(data, described=_described(records, data))


def _described(source: Source, data: AuditedData) -> str:
    shape = source.training.features.shape[1:]
    size = f"{shape[0]:,} features" if len(shape) == 1 else f"images of shape {shape}"
    each = "equally many of each class" if data.balanced else "drawn from all alike"
    others = len(source.training) - data.num_records
    names = f" ({', '.join(source.class_names)})" if 0 < len(source.class_names) <= 5 else ""
    labels = "labels are numbers"
    if source.training.has_classes:
        labels = f"{source.num_classes} classes{names}"
    scaled = ["features"] * data.standardised + ["labels"] * (not source.training.has_classes)
    by = f" {' and '.join(scaled).capitalize()} are standardised by the adversary's records."
    for_test = ", and its test part the test" if source.test is not None else " and the test"
    return (
        f"Data: {data.source}, {len(source.training):,} records x {size}, {labels}."
        f" {data.num_records:,} of them are private ({each}); the other {others:,} serve the"
        f" adversary{for_test}.{by if scaled else ''}"
    )


def source_of_arrays(features: Any, labels: Any, *, label_kind: str = "classes") -> Source:
    """Arrays as a source; labels of kind `numbers` may be integers, and classes 0.0 and 1.0.

    Raises:
        InputError: if they are no records, or have a number that is NaN or infinite.
    """
    array = checked_array("labels", labels, kinds="fiub")
    checked = (number_labels if label_kind == "numbers" else class_labels)("labels", array)
    source = Source("the arrays", records_from("features and labels", features, checked))
    check_labels(source)
    return source


def write_source(path: Path, source: Source) -> bytes | None:
    """Writes records as a file that a config can name; not again if it holds them already.

    Returns:
        The content of the file that it replaces; None if it replaces none.

    Raises:
        InputError: if the file cannot be written.
    """
    arrays: dict[str, Any] = {
        "features": source.training.features,
        "labels": source.training.labels,
    }
    replaced = None
    if path.exists():
        written = read_npz(path)
        if written.keys() == arrays.keys() and all(
            written[name].dtype == array.dtype and np.array_equal(written[name], array)
            for name, array in arrays.items()
        ):
            return None
        replaced = path.read_bytes()
    write_atomically(path, lambda file: np.savez(file, **arrays))
    return replaced
