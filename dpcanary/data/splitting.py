"""Splits the records of a source into private, auxiliary and test records, and scales them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.core.randomness import generator
from dpcanary.data.record_source import Purpose, Source, row_blocks
from dpcanary.data.records import Records, Scaling, Split
from dpcanary.errors import InputError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SplitRows:
    """Which records of a source have which role.

    Attributes:
        private: rows of its training part.
        auxiliary: rows of its training part.
        test: rows of its test part; of its training part if it has no test part.
    """

    private: Indices
    auxiliary: Indices
    test: Indices


def split_records(
    source: Source,
    *,
    num_records: int,
    seed: int,
    balanced: bool = True,
    num_auxiliary: int | None = None,
    num_test: int | None = None,
    standardised: bool = True,
) -> Split:
    """Splits a source at random into private, auxiliary and test records, all disjoint.

    The test records come from the source's own test part. If it has none, they come from the
    records that are not private: half of these are auxiliary and half test records, or
    `num_auxiliary` of them and the rest. Features are standardised by the mean and standard
    deviation of the auxiliary records alone, so that scaling reads nothing private; images by those
    of each channel. Those that are not `standardised` stay as they are. Labels that are numbers
    always are.

    Raises:
        InputError: if there are too few records, or features were prepared by values of records
            that the adversary does not know.
    """
    if source.kind == "texts":
        raise InputError(
            f"{source.name}: its records are texts: the dataset needs an encoder, such as"
            " sentence-transformers/all-MiniLM-L6-v2"
        )
    rows = split_rows(
        source,
        num_records=num_records,
        seed=seed,
        balanced=balanced,
        num_auxiliary=num_auxiliary,
        num_test=num_test,
    )
    records, auxiliary = source.training, rows.auxiliary
    test_part = records if source.test is None else source.test
    scaling = _scaling_of(records.features, auxiliary) if standardised else None
    of_labels = None if records.has_classes else _scaling_of_labels(records, auxiliary)
    return Split(
        private=_scaled(records, rows.private, scaling, of_labels),
        auxiliary=_scaled(records, auxiliary, scaling, of_labels),
        test=_scaled(test_part, rows.test, scaling, of_labels),
        scaling=scaling,
        label_scaling=of_labels,
        private_rows=rows.private,
        private_names=np.array(source.names)[rows.private] if source.names else None,
        class_names=np.array(source.class_names) if source.class_names else None,
    )


def standardised(source: Source) -> Records:
    """The training records of a source, standardised by all of them; see `split_records`."""
    records, rows = source.training, np.arange(len(source.training))
    of_labels = None if records.has_classes else _scaling_of_labels(records, rows)
    return _scaled(records, rows, _scaling_of(records.features, rows), of_labels)


def split_rows(
    source: Source,
    *,
    num_records: int,
    seed: int,
    balanced: bool = True,
    num_auxiliary: int | None = None,
    num_test: int | None = None,
) -> SplitRows:
    """Which records `split_records` makes private, auxiliary and test records.

    This does not depend on their features, of which nothing is computed.

    Raises:
        InputError: see `split_records`.
    """
    records = source.training
    order = generator(seed=seed, purpose=Purpose.RECORDS).permutation(len(records))
    private = (_balanced if balanced else _unbalanced)(source, order, num_records)
    others = order[~np.isin(order, private)]
    default = len(others) // 2 if source.test is None else len(others)
    if default == 0:
        raise InputError(
            f"{source.name}: {len(private)} of its {len(records)} records are private, which leaves"
            " none as auxiliary or test records; lower num_records"
        )
    auxiliary = _first_of(source, others, "num_auxiliary", num_auxiliary, default=default)
    if source.prepared is not None:
        source.prepared.check(source.name, auxiliary)
    left = others[len(auxiliary) :] if source.test is None else np.arange(len(source.test))
    test = _first_of(source, left, "num_test", num_test, default=len(left))
    return SplitRows(private, auxiliary, test)


def _unbalanced(source: Source, order: Indices, num_records: int) -> Indices:
    """The first records in this order."""
    if len(order) < num_records:
        raise InputError(
            f"{source.name}: num_records {num_records} is more than its {len(order)} records"
        )
    return order[:num_records]


def _balanced(source: Source, order: Indices, num_records: int) -> Indices:
    """The first records of every class in this order."""
    if not source.training.has_classes:
        raise InputError(
            f"{source.name}: labels are numbers, so there are no classes to balance; set balanced:"
            " false"
        )
    labels, num_classes = source.training.labels, source.num_classes
    per_class, rest = divmod(num_records, num_classes)
    if rest or per_class == 0:
        raise InputError(
            f"{source.name}: num_records {num_records} is no multiple of its {num_classes} classes;"
            " change it, or set balanced: false"
        )
    counts = np.bincount(labels, minlength=num_classes)
    if counts.min() <= per_class:
        short = int(np.argmin(counts))
        name = source.class_names[short] if source.class_names else short
        raise InputError(
            f"{source.name}: class {name} has {counts[short]} records, num_records {num_records}"
            f" needs {per_class} of each of the {num_classes} classes, and others for the"
            " adversary; lower it, or set balanced: false"
        )
    chosen = [order[labels[order] == label][:per_class] for label in range(num_classes)]
    return np.concatenate(chosen)


def _first_of(source: Source, left: Indices, key: str, count: int | None, default: int) -> Indices:
    num_taken = default if count is None else count
    if not 0 < num_taken <= len(left):
        raise InputError(
            f"{source.name}: {key} {num_taken or 'by default'} is not possible: {len(left)} records"
            " are left for it; change it or num_records"
        )
    return left[:num_taken]


def _scaling_of(features: NDArray[Any], indices: Indices) -> Scaling:
    """Mean and standard deviation of every feature, or of every channel over all its pixels."""
    axes = (0, *range(2, features.ndim))
    blocks = [indices[block] for block in row_blocks(len(indices), features.shape[1:])]
    count = len(indices) * int(np.prod(features.shape[2:]))
    total = sum(features[block].sum(axis=axes, dtype=np.float64, keepdims=True) for block in blocks)
    mean = np.asarray(total / count)
    squares = sum(((features[block] - mean) ** 2).sum(axis=axes, keepdims=True) for block in blocks)
    deviation = np.sqrt(np.asarray(squares / count))
    lowest, highest = (
        bound.reduce([bound.reduce(features[block], axis=axes, keepdims=True) for block in blocks])
        for bound in (np.minimum, np.maximum)
    )
    # The mean of a constant may be rounded, and then its deviation is not 0.
    is_constant = lowest == highest
    return Scaling(
        np.where(is_constant, lowest, mean),
        np.where(is_constant | (deviation == 0), 1.0, deviation),
    )


def _scaling_of_labels(records: Records, indices: Indices) -> Scaling:
    scales = _scaling_of(records.labels[:, None], indices)
    return Scaling(scales.mean[0], scales.deviation[0])


def _scaled(
    records: Records, indices: Indices, scaling: Scaling | None, of_labels: Scaling | None
) -> Records:
    """The records at these indices in single precision; only a block of them in double.

    Features that are not scaled are int64 if they are integers.
    """
    features = records.features
    kind = np.float32 if scaling or features.dtype.kind == "f" else np.int64
    scaled = np.empty((len(indices), *features.shape[1:]), dtype=kind)
    for block in row_blocks(len(indices), features.shape[1:]):
        part = features[indices[block]]
        scaled[block] = (part - scaling.mean) / scaling.deviation if scaling else part
    labels = records.labels[indices]
    if of_labels:
        labels = ((labels - of_labels.mean) / of_labels.deviation).astype(np.float32)
    return Records(scaled, labels)
