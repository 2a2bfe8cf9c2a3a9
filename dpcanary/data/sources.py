"""Every source that a config can name, read by its name."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dpcanary.core.files import sha256_of_path
from dpcanary.data.dataset_settings import SourceStage
from dpcanary.data.own_files import read_arrays_of, read_own
from dpcanary.data.public_datasets import (
    digits,
    digits_parity,
    purchase100_synthetic,
    read_california_housing,
    read_cifar10,
    read_purchase100,
    read_sst2,
)
from dpcanary.data.record_source import (
    KNOWN_SOURCES,
    LABELS_ARE_CLASSES,
    OWN_SUFFIXES,
    Source,
    check_hashes,
    is_own,
    own_files,
)
from dpcanary.data.table_columns import FOR_REGRESSION, MANY_CLASSES, are_amounts
from dpcanary.errors import InputError, suggestion

READ: dict[str, Callable[[Sequence[Path]], Source]] = {
    "digits": lambda files: digits(),
    "digits_parity": lambda files: digits_parity(),
    "cifar10": read_cifar10,
    "sst2": read_sst2,
    "california_housing": read_california_housing,
    "purchase100": read_purchase100,
}
DRAW = {"purchase100_synthetic": purchase100_synthetic}


def load_records(
    stage: SourceStage, *, files: Sequence[Path], features: Path | None = None
) -> Source:
    """Reads or generates the records of a stage's source, or reads the file of their features.

    Raises:
        InputError: if a file is missing, is wrong, or has another hash than the stage says.
    """
    if features is not None:
        return read_arrays_of(features, label_kind=stage.label_kind)
    check_hashes(files, [*map(sha256_of_path, files)] if stage.sha256 else [], stage.sha256)
    return load_source(
        stage.source,
        files=files,
        max_records=stage.max_records,
        num_test=stage.num_test,
        seed=stage.seed,
        label_column=stage.label_column,
        label_kind=stage.label_kind,
        preparation=stage.preparation,
        image_size=stage.image_size,
    )


def load_source(
    source: str,
    *,
    files: Sequence[Path] = (),
    max_records: int | None = None,
    num_test: int | None = None,
    seed: int = 0,
    label_column: str = "label",
    label_kind: str = "classes",
    preparation: str | None = None,
    image_size: int | None = None,
) -> Source:
    """Reads or generates the records of a known source, or those of a user's own file or folder.

    `files` are the training part, then the test part if there is one; of a user's own source they
    are its path and that of its preparation, and follow from their names by default. The seed is
    that of a source that is drawn; see the keys of a dataset for the others.
    """
    entry = KNOWN_SOURCES.get(source)
    if entry is None:
        if not is_own(source):
            raise InputError(
                f"unknown dataset source {source!r}; {suggestion(source, KNOWN_SOURCES)} (or give"
                f" the path of a file: {', '.join(OWN_SUFFIXES)}; or of a folder, with a slash at"
                " its end)"
            )
        own = own_files(source, preparation)
        if files and len(files) != len(own):
            raise InputError(
                f"source {source} is read from {len(own)} files; {len(files)} are given"
            )
        whole = read_own(
            files or own,
            label_column=label_column,
            label_kind=label_kind,
            image_size=image_size,
            max_records=max_records,
        )
        kept = whole.first(max_records=max_records, num_test=num_test)
        check_labels(kept)
        return kept
    if label_kind != "classes":
        raise InputError(LABELS_ARE_CLASSES.format(source))
    if label_column != "label":
        raise InputError(f"source {source} is not a table: label_column is for one; drop the key")
    if len(files) < min(entry.max_files, 1):
        raise InputError(f"source {source} is read from files, and none is given; download it")
    if len(files) > entry.max_files:
        raise InputError(
            f"source {source} is read from {entry.max_files or 'no'} files, not from {len(files)}"
        )
    if entry.is_drawn:
        whole = DRAW[source](num_records=max_records or entry.num_training, seed=seed)
    else:
        whole = READ[source](files)
    return whole.first(max_records=max_records, num_test=num_test)


_FEW = 4  # so few records may all be of different classes


def check_labels(kept: Source) -> None:
    """Refuses a single label, and gaps: an output would be trained for a class without a record."""
    labels = np.unique(kept.training.labels)
    if len(labels) == 1:
        raise InputError(
            f"{kept.name}: all records have the same label; training needs at least two"
        )
    if not kept.training.has_classes:
        return
    if len(labels) == len(kept.training) > _FEW:
        raise InputError(
            f"{kept.name}: every record has a label of its own, so there is nothing to learn; is"
            " this the column or array of labels?"
        )
    if len(labels) < kept.num_classes:
        missing = np.setdiff1d(np.arange(len(labels) + 1), labels)
        ways = "number the classes from 0 without gaps, or let `dpcanary audit --prepare` do it in"
        ways += " a table"
        if are_amounts(len(labels), len(kept.training)):
            ways = FOR_REGRESSION
        elif len(labels) > MANY_CLASSES:
            ways += f"; if labels are counts or amounts, {FOR_REGRESSION}"
        raise InputError(
            f"{kept.name}: no record has label {missing[0]}, though labels go up to"
            f" {kept.num_classes - 1}; {ways}"
        )
